"""What adversarial texts are made of: words, signs and blanks that normalizers and patterns treat in their own ways."""

# ruff: noqa: RUF001 - letters that look like others are meant

_WORDS = """
    a the Hello ÜBER naïve İI ß Σς ΑΣ Жизнь ǅ K ﬁn ªº 日本語 한국어 ไทยคำ हिन्दी العربية שָׁלוֹם ﷺ ｱﾞ ﾞ ർൎ 𝔘 ˈ ʰ 々 ー ㍿
"""
_SIGNS = """
    don't I'll 's 'S '' ' " (see 3.14) 1,000 U.S. e.g., -- ... a_b `` <b> http://x.yz/?q=1&r=[2] x@y.z C++ #1 1st
    ½ ² Ⅷ ٣ ७ … “quoted” ‘it’s’ — –5 €5 ´ ¨ ¸ ～ 。 、 「x」 ☃ © 🙂 🇩🇪🇫🇷 👍🏽 ##ing ▁ ▁a Ġ Ċ [UNK] </s>
"""
WORDS = [
    *_WORDS.split(),
    *("x" * 101, "ab" * 60, "e\u0301a", "\u0301", "x\u0308y", "A\u030a", "\u20dd", "\u0345", "\u0e33"),
    *("\u1112\u1161\u11ab", "\U0001e900"),
]
SIGNS = [
    *_SIGNS.split(),
    *("0" * 40, "👩\u200d👩\u200d👧", "\ufffd", "\ue000", "\u0378", "\U0010fffe"),
]
BLANKS = [
    *(" ", "  ", "   ", "\n", "\n\n", " \n", "\n ", "\r", "\r\n", "\t", "\t ", "\x0b", "\x0c", "\x1c", "\x1f", "\x85"),
    *("\u00a0", "\u1680", "\u2003", "\u2009", "\u202f", "\u3000", "\u2028", "\u2029", "\u200b", "\u200c", "\u200d"),
    *("\u2060", "\ufeff", "\u00ad", "\x00", "\x07", "\x7f", "\u061c", "\u0600"),
]
