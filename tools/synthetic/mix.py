"""Which quantisation type each tensor gets: named mixes and rules.

A rule is PATTERN=TYPE. PATTERN is a regular expression searched for in the tensor's name; a bare * fits every
name. Of the rules that fit, the longest pattern decides, and of equally long ones the last. A rule list is
rules, named mixes and type names joined by commas; a type name alone means *=TYPE.
"""

import re

from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

TYPES: dict[str, GGMLQuantizationType] = {
    name.lower(): GGMLQuantizationType[name]
    for name in (
        "F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K",
        "IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ4_NL", "IQ4_XS", "MXFP4",
    )
}  # fmt: skip

# What takes the place of a type whose blocks do not divide a row (attn_k_b: 192), as llama-quantize does it.
_FALLBACK = {
    "Q2_K": "Q4_0", "Q3_K": "Q4_0", "Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0",
    "IQ1_S": "IQ4_NL", "IQ1_M": "IQ4_NL", "IQ2_XXS": "IQ4_NL", "IQ2_XS": "IQ4_NL", "IQ2_S": "IQ4_NL",
    "IQ3_XXS": "IQ4_NL", "IQ3_S": "IQ4_NL", "IQ4_XS": "IQ4_NL",
}  # fmt: skip

_ROUTED = "ffn_.*_exps"

# {mtp} is the number of the first MTP block.
MIXES: dict[str, str] = {
    "published": rf"*=q8_0,{_ROUTED}=iq2_xxs,blk\.{{mtp}}\.{_ROUTED}=q2_k",
    "published-q2_k": rf"*=q8_0,{_ROUTED}=q2_k",
    "published-q4_k": rf"*=q8_0,{_ROUTED}=q4_k",
    "q2_k+iq2_xxs": rf"*=q8_0,{_ROUTED}=iq2_xxs,ffn_down_exps=q2_k",
    "q5_k+q6_k": "*=q5_k,output=q6_k,attn_output=q6_k,ffn_down=q6_k,attn_v_b=q6_k",
    "iq3+iq4": f"*=iq4_xs,attn_=iq4_nl,{_ROUTED}=iq3_xxs,ffn_down_exps=iq3_s,token_embd=iq3_s",
    "iq1+iq2": f"*=iq2_s,attn_=iq2_xs,{_ROUTED}=iq1_s,ffn_down_exps=iq1_m,token_embd=q4_k,output=q6_k",
    "q4_k+q3_k": "*=q4_k,ffn_down=q3_k,output=q6_k,attn_q_b=q3_k",
    "legacy": "*=q4_0,attn_=q5_0,ffn_down=q5_1,ffn_up=q4_1,output=q8_0",
    "mxfp4": f"*=q8_0,{_ROUTED}=mxfp4",
    # near to what mixed 2-bit uploads carry
    "ud-q2": (
        r"*=q8_0,token_embd=q4_k,output=q4_k,attn_output=q5_k,attn_q_a=q6_k,ffn_gate=q5_k,ffn_up=q5_k,"
        rf"ffn_down=q6_k,{_ROUTED}=iq2_xxs,ffn_down_exps=iq3_xxs,blk\.[0-9]*[05]\.ffn_gate_exps=iq2_s,"
        r"blk\.[0-9]*[48]\.ffn_down_exps=q3_k,blk\.[0-9]*[48]\.ffn_up_exps=q2_k"
    ),
    # every one of the 23 types in one file of eight layers
    "zoo": (
        r"*=q8_0,token_embd=bf16,output=f16,attn_q_a=f32,attn_q_b=q4_0,attn_kv_a=q4_1,attn_k_b=q5_0,"
        r"attn_v_b=q5_1,attn_output=q3_k,indexer.attn_q=q4_k,indexer.attn_k=q6_k,ffn_gate=q5_k,ffn_up=iq4_nl,"
        rf"ffn_down=iq4_xs,{_ROUTED}=iq2_xxs,blk\.4\.ffn_gate_exps=iq1_s,blk\.4\.ffn_up_exps=iq1_m,"
        r"blk\.4\.ffn_down_exps=iq2_xs,blk\.5\.ffn_gate_exps=iq2_s,blk\.5\.ffn_up_exps=iq3_xxs,"
        r"blk\.5\.ffn_down_exps=iq3_s,blk\.6\.ffn_gate_exps=q2_k,blk\.6\.ffn_up_exps=mxfp4"
    ),
}

# Never quantised by anybody; the indexer's projection is float by convention, so a rule may name it.
_ALWAYS_F32 = re.compile(r"ffn_gate_inp\.weight$")
_FLOAT_UNLESS_NAMED = "indexer.proj"


def _split(spec: str, mtp_block: int) -> list[tuple[str, GGMLQuantizationType]]:
    rules: list[tuple[str, GGMLQuantizationType]] = []
    for part in filter(None, (part.strip() for part in spec.split(","))):
        pattern, equals, type_name = part.rpartition("=")
        if not equals and part.lower() in TYPES:
            rules.append(("*", TYPES[part.lower()]))
        elif not equals and part.lower() in MIXES:
            rules += _split(MIXES[part.lower()].replace("{mtp}", str(mtp_block)), mtp_block)
        elif equals and type_name.lower() in TYPES:
            rules.append((pattern, TYPES[type_name.lower()]))
        else:
            mixes, types = ", ".join(MIXES), ", ".join(TYPES)
            raise ValueError(f"mix: {part!r} is no PATTERN=TYPE, no mix ({mixes}) and no type ({types})")
    return rules


class Mix:
    """Says which type a tensor gets. Errors: ValueError for a malformed spec or a row that does not fit."""

    def __init__(self, spec: str, mtp_block: int) -> None:
        self._rules = []
        for pattern, type_ in _split(spec, mtp_block):
            try:
                self._rules.append((re.compile("" if pattern == "*" else pattern), pattern, type_))
            except re.error as error:
                raise ValueError(f"mix: pattern {pattern!r}: {error}") from error
        # Stable: of equally long patterns the later comes last, and the last that fits decides.
        self._rules.sort(key=lambda rule: 0 if rule[1] == "*" else len(rule[1]))
        if not any(pattern == "*" for _, pattern, _ in self._rules):
            raise ValueError(f"mix: {spec!r} says nothing about the other tensors; add *=TYPE")

    def type_of(self, name: str, row: int) -> GGMLQuantizationType:
        """Type of a matrix of this name with rows of so many values."""
        fitting = [rule for rule in self._rules if rule[0].search(name)]
        if _ALWAYS_F32.search(name):
            return GGMLQuantizationType.F32
        if _FLOAT_UNLESS_NAMED in name and _FLOAT_UNLESS_NAMED not in fitting[-1][1].replace("\\", ""):
            return GGMLQuantizationType.F32
        type_ = fitting[-1][2]
        if row % GGML_QUANT_SIZES[type_][0] and type_.name in _FALLBACK:
            type_ = GGMLQuantizationType[_FALLBACK[type_.name]]
        if row % GGML_QUANT_SIZES[type_][0]:
            raise ValueError(f"mix: {name} has rows of {row} values, {type_.name} needs a multiple of "
                             f"{GGML_QUANT_SIZES[type_][0]}")  # fmt: skip
        return type_
