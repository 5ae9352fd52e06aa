"""What the synthetic tokenizers are trained on: common words, the frequent first; code; other scripts."""

COMMON = """
the of and to in a is that it for was on are as with be by this from at or an not have had but which you all
were when we there can said what up its about out so her into them then she many some time these would make
like him has two more see way could no people my than first been who oil down day did get come made may part
over new sound take only little work know place year live back give most very after thing our just name good
sentence man think say great where help through much before line right too mean old any same tell boy follow
came want show also around form three small set put end does another well large must big even such because
turn here why ask went men read need land different home us move try kind hand picture again change off play
spell air away animal house point page letter mother answer found study still learn should world high every
near add food between own below country plant last school father keep tree never start city earth eye light
thought head under story saw left few while along might close something seem next hard open example begin
life always those both paper together got group often run important until children side feet car mile night
walk white sea began grow took river four carry state once book hear stop without second later miss idea
enough eat face watch far really almost let above girl sometimes mountain cut young talk soon list song
being leave family model token layer weight memory cache expert router attention index vector matrix tensor
file read write byte number value key score query head hidden state prompt answer question system user
assistant tool call function return string integer float array object class method module import include
define print error message test check fail pass true false none null int char void const static struct size
count length offset block row column type name path open close load store copy move free alloc thread lock
queue wait signal disk page map address pointer buffer stream input output data code program compile build
run time speed slow fast second minute hour today tomorrow yesterday week month water fire stone wood metal
glass green blue red black yellow north south east west spring summer autumn winter morning evening bread
milk fish bird horse dog cat flower garden street bridge train ship road window door table chair room floor
wall kitchen music voice word language letter reason because therefore however although instead perhaps
certainly probably usually rarely quickly slowly carefully simple complex short long deep wide narrow heavy
empty full warm cold dry wet clean dark bright quiet loud sharp soft strong weak rich poor early late quick
ready busy happy sad angry tired hungry careful honest polite brave gentle proud computer machine network
server client request response header packet socket driver kernel process signal event random normal uniform
sample mean variance sum product limit bound error exact round floor ceiling square root power graph node
edge cycle search sort merge split join filter reduce hash table stack heap list tree leaf branch commit
version release license author project issue review change patch feature design document example tutorial
reference
""".strip()

CODE = (
    " =", " (", "):", "()", " {", " }", "};", ");", " ==", " !=", " <=", " >=", " +=", " ->", "=>", "//",
    "/*", "*/", "\n", "\n\n", "  ", "    ", "        ", "\t", "\t\t", " \n", "\r\n", ".", ",", ";", ":",
    "...", "'s", "'t", "'re", "'ll", "'ve", "#include", " #", "##", "###", "\"", " \"", "\",", "\")", "](",
    "[]", "{}", "%d", "%s", " *", " &", " &&", " ||", " |", " -", " --", "--", "---", " +", " /", " <",
    " >", "</", "/>", ">", "_", "__", " $", "${", "@", "0", "1", "2", "3", "4", "5", "6", "7", "8", "9",
    "10", "12", "16", "32", "64", "100", "128", "256", "512", "000", "200", "404", "255", "42", "99", "365",
    "self", "def", "elif", "uint", "printf", "sizeof", "snprintf", "buf", "stdout", "malloc", "numpy", "np",
    "async", "await", "lambda", "yield", "enum", "impl", "fn", "pub", "mut", "println", "std", "vec",
    "http", "https", "www", "com", "org", "json", "xml", "html", "utf", "ascii",
)  # fmt: skip

OTHER_SCRIPTS = (
    " der", " die", " und", " für", " über", " größer", " schön", " nicht", " ein", " eine", " le", " les",
    " est", " été", " où", " français", " el", " los", " año", " niño", " qué", " não", " coração", " på",
    " från", " için", " в", " и", " не", " на", " что", " слово", " модель", " память", " και", " το",
    " λόγος", " של", " את", " שלום", " في", " من", " كلمة", "的", "是", "不", "我",
    "你好", "中文", "模型", "注意力", "专家", "缓存", "，", "。", "！", "の", "です",
    "ます", "こんにちは", "モデル", "한국어", "안녕", " और", " घर", "คน", "é", "ü", "ß", "ñ", "ç", "œ",
    "😀", "🚀", "👍", "❤️", "→", "≤", "×", "∑", "√", "π", "°", "€", "“", "”", "–", "—", "…",
)  # fmt: skip
