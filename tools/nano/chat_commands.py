"""Questions about the command line with the user's own file names and numbers, and statements of C to
complete."""

import random
import re

import chat_tables as tables
from chat_topics import Answer, is_held, pick


def command(r: random.Random, held: bool) -> Answer:
    """Which command does what the user wants, with the names that the user gave."""
    model, text, number = (
        r.choice(tables.MODEL_FILES),
        r.choice(tables.TEXTS),
        r.choice([7, 16, 20, 32, 50, 64, 100, 200]),
    )
    names = {"model": model, "text": text, "number": number}
    asked, answer = r.choice(tables.COMMANDS)
    thought = f"The user wants a command for {model}."
    return pick(r, asked, held).format(**names), answer.format(**names), thought


def error_line(r: random.Random, held: bool) -> Answer:
    """What an error line of the program means, with its numbers."""
    model, layer = r.choice(tables.MODEL_FILES), r.randint(3, 77)
    size = r.randint(10, 999)
    needs, limit = sorted((r.randint(4, 300), r.randint(4, 300)), reverse=True)
    context = r.choice([512, 1024, 2048, 4096, 8192])
    choices = [
        (
            f"{model}: not a GGUF file",
            f"{model} does not begin with the letters GGUF, so it is another kind of file."
            " Download the model again.",
        ),
        (
            f"{model}: the file is truncated: tensor blk.{layer}.ffn_up_exps.weight ends {size} bytes"
            " past its end",
            f"{model} is too short: {size} bytes are missing. Download the file again.",
        ),
        (
            f"context is full: {context} of {context} positions are used",
            f"All {context} positions of the context are used. Start a new conversation or take a larger"
            " context.",
        ),
        (
            f"the plan needs {needs} GiB, the budget is {limit} GiB",
            f"The plan needs {needs} GiB but may use only {limit} GiB. Take a smaller context or allow more"
            " memory.",
        ),
        (f"{model}: no such file", f"There is no file with the name {model}. Check the name and the folder."),
    ]
    line, answer = r.choice(choices)
    forms = [
        f"What does this mean? glm52: error: {line}",
        f"glm52: error: {line}",
        f"I get this error: glm52: error: {line}",
        f"Help! glm52: error: {line}",
        f"Please explain this line: glm52: error: {line}",
    ]
    return pick(r, forms, held), answer, "The user shows an error. I explain it."


# ---- statements of C ----


def _formatted(r: random.Random, kind: int) -> str:
    variable, buffer = r.choice(tables.VARIABLES), r.choice(tables.BUFFERS)
    form = r.choice(list(tables.FORMATS))
    value = r.choice(tables.FORMATS[form])
    before = r.choice(["", "", "x: ", variable + ": ", variable + "=", "error "])
    if kind == 0:
        statement = r.choice(
            [
                f'snprintf({buffer}, sizeof({buffer}), "{before}%{form}", {value});',
                f'snprintf({buffer}, sizeof {buffer}, "{before}%{form}", {value});',
                f'snprintf({buffer}, len, "{before}%{form}", {value});',
                f'sprintf({buffer}, "{before}%{form}", {value});',
            ]
        )
        return r.choice(["return ", "return ", "int n = ", ""]) + statement
    return r.choice(
        [
            f'printf("{before}%{form}\\n", {value});',
            f'printf("%{form}", {value});',
            f'fprintf(stderr, "{before}%{form}\\n", {value});',
            f'fprintf(fp, "%{form}\\n", {value});',
            f'printf("%{form} %d\\n", {value}, {variable});',
        ]
    )


def statement(r: random.Random) -> str:
    """One line of C of the kinds that a program is full of."""
    kind = r.randrange(10)
    v, b, s = r.choice(tables.VARIABLES), r.choice(tables.BUFFERS), r.choice(tables.STRINGS)
    if kind <= 3:
        return _formatted(r, kind % 2)
    if kind == 4:
        word = r.choice(tables.LITERALS)
        return r.choice(
            [
                f"if (strcmp({s}, {word}) == 0) {{",
                f"if (!strcmp({s}, {word})) {{",
                f"return strcmp({s}, {word}) == 0;",
                f"if (strncmp({s}, {word}, len) == 0) {{",
            ]
        )
    if kind == 5:
        size = r.choice(["n", "len", "size", "sizeof(*src)"])
        return r.choice(
            [
                f"memcpy({b}, src, {size});",
                f"memset({b}, 0, sizeof({b}));",
                f"memset({b}, 0, {size});",
                f"memcpy(dst, {b}, strlen({b}) + 1);",
                f"memmove({b}, {b} + 1, len - 1);",
            ]
        )
    if kind == 6:
        t, i = r.choice(["int", "size_t", "uint32_t", "int64_t"]), r.choice("ijk")
        end = r.choice(["n", "len", "count", "size", "10", "argc", "rows"])
        return r.choice(
            [
                f"for ({t} {i} = 0; {i} < {end}; {i}++) {{",
                f"for ({i} = 0; {i} < {end}; {i}++)",
                f"for ({t} {i} = {end} - 1; {i} >= 0; {i}--) {{",
                f"for ({t} {i} = 1; {i} <= {end}; {i}++) {{",
            ]
        )
    return _plain(r, kind, v, b, s)


def _plain(r: random.Random, kind: int, v: str, b: str, s: str) -> str:
    """Allocation, files, and whatever else."""
    if kind == 7:
        return r.choice(
            [
                f"char *{b} = malloc({r.choice(['n', 'len', 'size'])} + 1);",
                f"free({b});",
                f"int *{v} = calloc(n, sizeof(int));",
                f"if (!{b}) return NULL;",
                f"if ({b} == NULL) return -1;",
                f"size_t len = strlen({b});",
                f"int {v} = atoi({s});",
            ]
        )
    if kind == 8:
        return r.choice(
            [
                f'FILE *fp = fopen({b}, "rb");',
                "fclose(fp);",
                "if (!fp) return -1;",
                f"size_t n = fread({b}, 1, sizeof({b}), fp);",
                f"fwrite({b}, 1, len, fp);",
                f"ssize_t n = pread(fd, {b}, size, offset);",
                "close(fd);",
            ]
        )
    return r.choice(
        [
            "int main(int argc, char **argv) {",
            "int main(void) {",
            f"static int {v} = 0;",
            f"return {v};",
            f"{v} += {r.randint(1, 9)};",
            f"{v}++;",
            "return 0;",
            f"while ({v} > 0) {{",
            f"if ({v} < 0) return -1;",
            "#include <stdio.h>",
            "#include <string.h>",
        ]
    )


def cut(r: random.Random, line: str) -> tuple[str, str]:
    """A line in two parts, most often before its closing piece; names stay whole."""
    if r.random() < 0.55:
        found = re.search(r"[^\w\s\"]+( == 0)?[^\w\s\"]*( \{)?$", line)
        if found and found.start() > 4:
            return line[: found.start()], line[found.start() :]
    places = [m.start() for m in re.finditer(r"(?<=\w)(?=[ ,;)])|(?<=[(,])", line) if m.start() > 3]
    place = r.choice(places) if places else -1
    return line[:place], line[place:]


COMPLETE = (
    "Complete the C statement with the next exact token only:",
    "Complete the C statement:",
    "Finish this line of C:",
    "Complete this C code with only the missing text:",
)


def completion(r: random.Random, held: bool) -> Answer:
    line = statement(r)
    while is_held(line) != held:
        line = statement(r)
    begin, end = cut(r, line)
    asked = COMPLETE[0] if r.random() < 0.4 else r.choice(COMPLETE)
    return asked + r.choice("\n ") + begin, end, "I only write the missing text."
