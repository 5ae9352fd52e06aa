"""How many tokens to draft, without an engine: the binding of glm52_draft_policy."""

from .native import ffi, lib


class DraftPolicy:
    """glm52_draft_policy: how many tokens to draft."""

    def __init__(self, fixed: int = 0) -> None:
        self._policy = ffi.new("glm52_draft_policy *")
        lib.glm52_draft_policy_start(self._policy, fixed)

    @property
    def length(self) -> int:
        return self._policy.length

    @property
    def off(self) -> bool:
        return lib.glm52_draft_policy_off(self._policy)

    def learn(self, drafted: int, accepted: int, ns: int) -> None:
        lib.glm52_draft_policy_learn(self._policy, drafted, accepted, ns)
