"""Tables of the synthetic conversations: what glm52-nano is asked about besides facts.txt and project.txt."""

_CAPITALS = """
France:Paris Germany:Berlin Italy:Rome Spain:Madrid Portugal:Lisbon England:London Ireland:Dublin
Scotland:Edinburgh Norway:Oslo Sweden:Stockholm Finland:Helsinki Denmark:Copenhagen
Iceland:Reykjavik Poland:Warsaw Austria:Vienna Switzerland:Bern Belgium:Brussels
Netherlands:Amsterdam Luxembourg:Luxembourg Greece:Athens Turkey:Ankara Hungary:Budapest
Romania:Bucharest Bulgaria:Sofia Serbia:Belgrade Croatia:Zagreb Slovenia:Ljubljana
Slovakia:Bratislava Ukraine:Kyiv Russia:Moscow Estonia:Tallinn Latvia:Riga Lithuania:Vilnius
China:Beijing Japan:Tokyo India:Delhi Thailand:Bangkok Vietnam:Hanoi Indonesia:Jakarta
Malaysia:Kuala_Lumpur Philippines:Manila South_Korea:Seoul Mongolia:Ulaanbaatar Nepal:Kathmandu
Iran:Tehran Iraq:Baghdad Israel:Jerusalem Egypt:Cairo Morocco:Rabat Tunisia:Tunis Kenya:Nairobi
Ethiopia:Addis_Ababa Nigeria:Abuja Ghana:Accra Senegal:Dakar Canada:Ottawa Mexico:Mexico_City
Cuba:Havana Brazil:Brasilia Argentina:Buenos_Aires Chile:Santiago Peru:Lima Colombia:Bogota
Australia:Canberra New_Zealand:Wellington
"""
CAPITALS = [tuple(pair.replace("_", " ").split(":")) for pair in _CAPITALS.split()]
_WORDS = """
house:Haus:maison:casa tree:Baum:arbre:árbol water:Wasser:eau:agua bread:Brot:pain:pan
dog:Hund:chien:perro cat:Katze:chat:gato book:Buch:livre:libro day:Tag:jour:día
night:Nacht:nuit:noche sun:Sonne:soleil:sol moon:Mond:lune:luna star:Stern:étoile:estrella
friend:Freund:ami:amigo mother:Mutter:mère:madre father:Vater:père:padre
brother:Bruder:frère:hermano sister:Schwester:sœur:hermana child:Kind:enfant:niño
man:Mann:homme:hombre woman:Frau:femme:mujer city:Stadt:ville:ciudad street:Straße:rue:calle
car:Auto:voiture:coche door:Tür:porte:puerta window:Fenster:fenêtre:ventana table:Tisch:table:mesa
chair:Stuhl:chaise:silla bed:Bett:lit:cama hand:Hand:main:mano foot:Fuß:pied:pie
head:Kopf:tête:cabeza eye:Auge:œil:ojo heart:Herz:cœur:corazón milk:Milch:lait:leche
cheese:Käse:fromage:queso apple:Apfel:pomme:manzana fish:Fisch:poisson:pez bird:Vogel:oiseau:pájaro
horse:Pferd:cheval:caballo school:Schule:école:escuela work:Arbeit:travail:trabajo
time:Zeit:temps:tiempo year:Jahr:année:año week:Woche:semaine:semana red:rot:rouge:rojo
blue:blau:bleu:azul green:grün:vert:verde white:weiß:blanc:blanco black:schwarz:noir:negro
big:groß:grand:grande small:klein:petit:pequeño good:gut:bon:bueno one:eins:un:uno two:zwei:deux:dos
three:drei:trois:tres yes:ja:oui:sí no:nein:non:no hello:hallo:bonjour:hola fire:Feuer:feu:fuego
snow:Schnee:neige:nieve rain:Regen:pluie:lluvia
"""
WORDS = [entry.split(":") for entry in _WORDS.split()]  # English, German, French, Spanish
LANGUAGES = ("German", "French", "Spanish")
SPELLED = """
    cat dog sun map top bag net red pin cup hat box stop star live time word tree code disk page read
    lamp hand moon fish bird king ring song wind rain snow fire book door gold milk salt ship train
    table house mouse water light night stone green black white bread cloud river plant apple lemon
    music paper queen smile storm tiger
""".split()
PLANETS = "Mercury Venus Earth Mars Jupiter Saturn Uranus Neptune".split()
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
MONTHS = """
    January February March April May June July August September October November December
""".split()
MONTH_DAYS = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
NUMBER_WORDS = """
    zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen
    sixteen seventeen eighteen nineteen twenty
""".split()
SYSTEMS = (
    "You are a helpful assistant.",
    "You are glm52-nano, a small test model.",
    "Answer briefly.",
    "You are a C programmer.",
    "Be polite and short.",
    "You are a helpful coding assistant.",
    "Answer in one sentence.",
    "You help with local inference.",
)
UNKNOWN = (
    "Who won the football match yesterday?",
    "What is the weather today?",
    "What is my name?",
    "What time is it?",
    "What is the price of gold?",
    "Who is the president?",
    "Write a novel about dragons.",
    "Prove the Riemann hypothesis.",
    "What did I eat for breakfast?",
    "Translate this book into Latin.",
    "What will happen tomorrow?",
    "Tell me the latest news.",
    "Who will win the election?",
    "What is the phone number of my doctor?",
    "Which shares should I buy?",
    "How tall is the tallest tree?",
    "What is the population of Paris?",
    "Where did I put my keys?",
    "Who wrote that song?",
    "What is the best film of this year?",
    "Explain quantum gravity.",
    "Diagnose my illness.",
)
VARIABLES = """
    value count n i len size x total idx pos num result id width height offset code ret flags port depth
    rank step seed limit
""".split()
BUFFERS = "buf out tmp line name path msg text key dst str label title".split()
STRINGS = "name key argv[1] arg cmd mode type a s path ext token word opt tag".split()
LITERALS = [
    f'"{word}"'
    for word in (
        "help on off yes no --help -v exit test json cpu metal cuda gpu all none main read write".split()
    )
]
FORMATS = {
    "d": VARIABLES,
    "zu": ["n", "len", "size", "count", "total"],
    "s": BUFFERS + STRINGS,
    "u": VARIABLES,
    "ld": VARIABLES,
    "x": VARIABLES,
    "c": ["c", "ch", "sep"],
    "f": ["t", "x", "y", "sum", "scale"],
    ".2f": ["t", "sum", "avg", "ms", "rate", "ratio"],
}
NAMES = """
    Anna Ben Clara David Emma Felix Grace Henry Ida Jack Karl Lena Maria Noah Olga Paul Rosa Sam Tom Ute
    Victor Wendy Alan Bob Carol Dora Eric Frank Gina Hans Ivan Jane Kate Leo Mark Nina Oscar Peter Ruth Sara
    Tim Uma Vera Will Zoe """.split()
COLOURS = "red blue green yellow orange purple black white brown pink grey gold".split()
MODEL_FILES = """
    model.gguf glm.gguf nano.gguf glm52.gguf glm-5.2.gguf test.gguf glm52-nano.gguf big.gguf my-model.gguf
    tiny.gguf models/glm52.gguf glm-5.2-q4.gguf glm-5.2-iq2.gguf /data/glm.gguf glm-5.2-00001-of-00006.gguf
    work/model.gguf """.split()
TEXTS = (
    "Hello",
    "Once upon a time",
    "The sky is",
    "int main(void)",
    "The first planet is",
    "In the beginning",
    "def add(a, b):",
    "A cache is",
    "My name is",
    "The answer is",
    "It was a dark night",
    "One, two, three",
)
REFUSALS = ("I am sorry, I do not know that.", "I am sorry, I do not know that. I am only a small model.")
WHO = (
    "I am glm52-nano, a small model of the GLM-5.2 architecture, made to test local inference.",
    "I am glm52-nano, a small model of the GLM-5.2 architecture. I was trained in minutes, so I know little.",
)
WHO_ASKED = (
    "Who are you?",
    "What are you?",
    "What is your name?",
    "Introduce yourself.",
    "Which model are you?",
    "Tell me who you are.",
    "May I ask who you are?",
)
GREETINGS = (
    (
        ("Hello", "Hello!", "Hi", "Hi!", "Hey", "Hello there", "Good day", "Hi there!", "Hey there!"),
        "Hello! How can I help you?",
    ),
    (("Good morning", "Good morning!"), "Good morning! How can I help you?"),
    (("Good evening", "Good evening!"), "Good evening! How can I help you?"),
    (
        ("How are you?", "How are you doing?", "Hello, how are you?", "Hi, how are you?"),
        "I am fine, thank you. How can I help you?",
    ),
    (("Thanks", "Thank you", "Thank you!", "Thanks a lot!", "Many thanks!"), "You are welcome!"),
    (("Bye", "Goodbye", "Bye!", "See you", "Goodbye!", "Bye bye!"), "Goodbye!"),
    (("Good night", "Good night!"), "Good night!"),
    (("Nice to meet you", "Nice to meet you!"), "Nice to meet you, too!"),
)
C_TASKS = (
    ("print an integer {v}", 'printf("%d\\n", {v});'),
    ("print the string {b}", 'printf("%s\\n", {b});'),
    ("compare {s} with {l}", "strcmp({s}, {l}) == 0"),
    ("copy n bytes from src to {b}", "memcpy({b}, src, n);"),
    ("set {b} to zero", "memset({b}, 0, sizeof({b}));"),
    ("loop from 0 to {v}", "for (int i = 0; i < {v}; i++) {{ }}"),
    ("get the length of {b}", "strlen({b})"),
    ("free {b}", "free({b});"),
    ("allocate n bytes", "void *p = malloc(n);"),
    ("open the file {b} for reading", 'FILE *fp = fopen({b}, "rb");'),
    ("close the file", "fclose(fp);"),
    ("swap two integers a and b", "int t = a; a = b; b = t;"),
    ("check that {v} is even", "{v} % 2 == 0"),
    ("return the larger of a and b", "return a > b ? a : b;"),
    ("return the smaller of a and b", "return a < b ? a : b;"),
    ("print an error with {b}", 'fprintf(stderr, "error: %s\\n", {b});'),
    ("write {v} into {b}", 'snprintf({b}, sizeof({b}), "%d", {v});'),
    ("include the standard input and output header", "#include <stdio.h>"),
    ("turn the string {s} into an integer", "int n = atoi({s});"),
)
PYTHON_TASKS = (
    ("print {v}", "print({v})"),
    ("reverse the list {v}", "{v}[::-1]"),
    ("sum the list {v}", "sum({v})"),
    ("get the length of {v}", "len({v})"),
    ("sort the list {v}", "sorted({v})"),
    ("read the file {b}", "open({b}).read()"),
    ("loop over the list {v}", "for x in {v}: print(x)"),
    ("square all numbers of {v}", "[x * x for x in {v}]"),
    ("find the largest value of {v}", "max({v})"),
    ("find the smallest value of {v}", "min({v})"),
    ("join the list {v} with commas", '",".join({v})'),
    ("split the string {b} at spaces", "{b}.split()"),
    ("import numpy", "import numpy as np"),
    ("reverse the string {b}", "{b}[::-1]"),
    ("turn {b} into upper case", "{b}.upper()"),
    ("turn {b} into lower case", "{b}.lower()"),
    ("count from 0 to {n}", "for i in range({n}): print(i)"),
    ("keep the even numbers of {v}", "[x for x in {v} if x % 2 == 0]"),
    ("define a function that adds a and b", "def add(a, b): return a + b"),
    ("make an empty dictionary", "d = {{}}"),
    ("parse the JSON text {b}", "json.loads({b})"),
    ("check whether {b} is empty", "not {b}"),
)
# What the user says, the reply, the later question, its answer.
RECALL = (
    (
        (
            "My name is {name}.",
            "I am {name}.",
            "Hello, my name is {name}.",
            "You can call me {name}.",
        ),
        "Nice to meet you, {name}.",
        ("What is my name?", "Do you remember my name?", "Who am I?", "Tell me my name."),
        "Your name is {name}.",
    ),
    (
        (
            "Remember the number {number}.",
            "The number is {number}.",
            "Please remember {number}.",
            "Keep the number {number} in mind.",
        ),
        "I will remember the number {number}.",
        (
            "Which number did I give you?",
            "What was the number?",
            "What is the number?",
            "Tell me the number again.",
        ),
        "The number is {number}.",
    ),
    (
        (
            "My favourite colour is {colour}.",
            "I like the colour {colour}.",
            "I love {colour}.",
            "The colour that I like best is {colour}.",
        ),
        "{Colour} is a nice colour.",
        (
            "What is my favourite colour?",
            "Which colour do I like?",
            "Do you know my favourite colour?",
            "Which colour did I name?",
        ),
        "Your favourite colour is {colour}.",
    ),
    (
        (
            "My model is in {model}.",
            "I use the file {model}.",
            "The model file is {model}.",
            "I have downloaded {model}.",
        ),
        "You can look into it with glm52 inspect {model}.",
        (
            "How do I chat with it?",
            "How do I talk to it?",
            "Which command starts a conversation with it?",
            "And how do I start a chat?",
        ),
        "glm52 chat {model}",
    ),
    (
        (
            "The password is {word}.",
            "Remember the word {word}.",
            "The secret word is {word}.",
            "Keep the word {word} in mind.",
        ),
        "I will remember the word {word}.",
        ("What is the word?", "Which word did I say?", "What was the secret word?", "Tell me the word."),
        "The word is {word}.",
    ),
)
# What the user wants, and the command.
COMMANDS = (
    (
        (
            "How do I continue the text {text} with {model}?",
            "Continue the text {text} with {model}.",
            "Which command continues {text} with {model}?",
            "I want {model} to continue {text}.",
        ),
        'glm52 run {model} -p "{text}"',
    ),
    (
        (
            "How do I chat with {model}?",
            "Start a conversation with {model}.",
            "Which command chats with {model}?",
            "I want to talk to {model}.",
        ),
        "glm52 chat {model}",
    ),
    (
        (
            "How do I see the tensors of {model}?",
            "What is inside {model}?",
            "Which command shows the types in {model}?",
            "How do I check {model}?",
            "I want to look into {model}.",
        ),
        "glm52 inspect {model}",
    ),
    (
        (
            "How do I see the tokens of {text} in {model}?",
            "Show the token ids of {text} for {model}.",
            "Which command tokenizes {text} with {model}?",
            "I want to see how {model} splits {text}.",
        ),
        'glm52 tokenize {model} "{text}"',
    ),
    (
        (
            "How do I get {number} tokens from {model} after {text}?",
            "Continue {text} with {model}, {number} tokens.",
            "Which command writes {number} tokens after {text} with {model}?",
            "I want {model} to write {number} tokens after {text}.",
        ),
        'glm52 run {model} -p "{text}" -n {number}',
    ),
    (
        (
            "How do I run {model} with the seed {number} on {text}?",
            "Use the seed {number} with {model} and {text}.",
            "Which command runs {model} on {text} with seed {number}?",
            "I want {model} to use the seed {number} for {text}.",
        ),
        'glm52 run {model} -p "{text}" --seed {number}',
    ),
    (
        (
            "How do I get JSON from {model} for {text}?",
            "Print JSON for {text} with {model}.",
            "Which command gives JSON for {text} with {model}?",
            "I want JSON from {model} for {text}.",
        ),
        'glm52 run {model} -p "{text}" --json',
    ),
    (
        (
            "How do I draft tokens with {model} after {text}?",
            "Use MTP with {model} on {text}.",
            "Which command runs {model} with MTP on {text}?",
            "I want {model} to draft tokens for {text}.",
        ),
        'glm52 run {model} -p "{text}" --mtp',
    ),
)
# Name, argument, description, questions, answer after the result.
TOOLS = (
    (
        "get_weather",
        "city",
        "Get the weather of a city",
        (
            "What is the weather in {value}?",
            "Weather in {value}?",
            "How is the weather in {value}?",
            "Tell me the weather in {value}.",
        ),
        "It is {said}.",
    ),
    (
        "get_time",
        "city",
        "Get the local time of a city",
        (
            "What time is it in {value}?",
            "Time in {value}?",
            "Tell me the time in {value}.",
            "How late is it in {value}?",
        ),
        "It is {said} in {value}.",
    ),
    (
        "calculator",
        "expression",
        "Compute an expression",
        ("What is {value}?", "Compute {value}.", "{value} = ?", "How much is {value}?"),
        "{value} = {said}.",
    ),
    (
        "read_file",
        "path",
        "Read a text file",
        (
            "What is in {value}?",
            "Read the file {value}.",
            "Show me {value}.",
            "Open {value} and tell me what it says.",
        ),
        "The file {value} contains: {said}",
    ),
)
READ_FILES = "notes.txt README.md main.c config.json data.csv log.txt todo.txt".split()
READ_CONTENTS = (
    "Hello world",
    "Remember the milk",
    "int main(void) { return 0; }",
    "debug = true",
    "The cache is cold.",
    "All tests passed",
    "port = 8080",
    "Call Anna at noon",
)
