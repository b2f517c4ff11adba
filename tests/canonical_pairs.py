"""Texts that are the same, and texts that are not, for the tests of canonical text and of all that uses it. Only data."""

# Other numbers, formulas and programs, which differ only in signs. No two are one text.
DIFFERENT = [
    ("1.5", "15"),
    (".5", "5"),
    ("12+3", "1+23"),
    ("12-3", "12+3"),
    ("-5", "+5"),
    ("\u22125", "5"),
    ("1,000", "1.000"),
    ("3.14", "3 14"),
    ("12:30", "1230"),
    ("$5", "5"),
    ("5\u20ac", "5$"),
    ("50%", "50"),
    ("5'10\"", "510"),
    ("1|2|300", "12|300"),
    ("12|300", "12300"),
    ("2^10", "210"),
    ("a/b", "ab"),
    ("10\u00b2", "102"),
    ("x\u00b2", "x2"),
    ("x\u2081", "x1"),
    ("x\u0304", "x"),
    ("v\u20d7", "v"),
    ("a \u2264 b", "a \u2265 b"),
    ("a.b", "a,b"),
    ("a..b", "a.b"),
    ("a != b", "a = b"),
    ("a->b", "a<-b"),
    ("if a < b: return a", "if a > b: return a"),
    ("if a < b: return a", "if a == b: return a"),
    ("x = y * z", "x = y + z"),
    ("x = y * z", "x = y / z"),
    ("~x", "x"),
    ("i--", "i++"),
    ("ls --all", "ls -all"),
    ("lst[1:]", "lst[1]"),
    ("x[1:, 0]", "x[1, 0]"),
    ("x[1:, 0]", "x[1:0]"),
    ("f(x)", "f[x]"),
    ("C++", "C"),
    ("C#", "C"),
    ("<b>", "b"),
    ("vector<int>", "vector int"),
    ("stop_now", "stopnow"),
    ("#include", "include"),
    ("http://a.b/c", "http://ab/c"),
    ("| a | b |", "| a b |"),
    ("\\frac{1}{23}", "\\frac{12}{3}"),
    ("!!!", "???"),
    ("...", "!!!"),
    ('"""', "'''"),
    ("\u200b", ""),
]

# Copies of the same prose or program, which differ as typewriters, editors and browsers do.
SAME = [
    ("\u201cDon\u2019t,\u201d she said.", '"Don\'t," she said.'),
    ("\u201eNein\u201c, sagte er.", '"Nein", sagte er.'),
    ("``Don\u00b4t''", '"Don\'t"'),
    ("it \u2014 was", "it--was"),
    ("it \u2014 was", "it - was"),
    ("1990\u20131995", "1990-1995"),
    ("re\u2011open", "re-open"),
    ("3 \u2212 1", "3 - 1"),
    ("cafe\u0301", "caf\u00e9"),
    ("Wait...", "Wait\u2026"),
    ("...and so on", "\u2026and so on"),
    ("\u4f60\u597d\uff0c\u4e16\u754c\u3002", "\u4f60\u597d,\u4e16\u754c."),
    ("\u4e2d\u6587\u3001\u4e2d\u6587", "\u4e2d\u6587 \u4e2d\u6587"),
    ("THE END", "the end"),
    ("one\r\ntwo", " one  two\n"),
    ("a\u00a0b", "a b"),
    ("soft\u00adhyphen", "softhyphen"),
    ("R&amp;D and &lt;b&gt;", "R&D and <b>"),
    ("\uff21\uff22\uff11\uff12", "ab12"),
    ("o\ufb03ce", "office"),
    ("Hello, world.", "Hello world"),
    ("No!!!", "No!"),
    ("\u00bfQu\u00e9?", "Qu\u00e9"),
    ("\u0646\u0639\u0645\u060c \u0644\u0627\u061f", "\u0646\u0639\u0645 \u0644\u0627"),
    ("x=y+z", "x = y + z"),
    ("f( x )", "f(x)"),
]

# Equal although they may mean different things: quotes and the marks at the end of a word are those of prose. docs/cleaning.md names them.
EQUAL_ALL_THE_SAME = [
    ("5! = 120", "5 = 120"),
    ("6'", '6"'),
    ('x="a"', "x=a"),
    ("foo(1, 2)", "foo(1 2)"),
    ("1--2", "1-2"),
    ("we're", "were"),
]

# Copies that an earlier rule merged, which removed all punctuation. They are near in a longer text.
ONLY_NEAR = [
    ("re-open", "reopen"),
    ("**bold**", "bold"),
    ("(see x)", "see x"),
    ("etc., and", "etc. and"),
    ("Bonjour !", "Bonjour!"),
    ("- item", "* item"),
]

# 18 documents, and no two are copies: other facts, formulas and programs.
DOCUMENTS = [
    "What is 1.5 times 2? It is 3.",
    "What is 15 times 2? It is 3.",
    "Compute 12+3 and write the result.",
    "Compute 1+23 and write the result.",
    "Compute 12-3 and write the result.",
    "1|2|300",
    "12|300",
    "12300",
    "if a < b: return a",
    "if a > b: return a",
    "if a == b: return a",
    "The change was -5 percent last year.",
    "The change was +5 percent last year.",
    "x = y * z",
    "x = y / z",
    "x = y + z",
    "!!!",
    "???",
]

# 30 questions of arithmetic, no two alike: 1+23, 12+3, 1-23, 12-3, ..., 4/56, 45/6.
QUESTIONS = [
    f"What is {digits[:cut]}{operator}{digits[cut:]}?" for digits in ("123", "234", "456") for operator in "+-*/." for cut in (1, 2)
]
