"""The colours of figures, each with its counterpart on a dark page. Loads nothing.

Every colour stands for one role and is used for no other, so that a page can swap it.
"""

from paceline.rounds import TokenSource

INK = "#1b2331"
MUTED = "#5b6676"
GRID = "#dde2ea"
PLAIN = "#b4560f"
SPECULATIVE = "#2a62c8"

SOURCES = {
    TokenSource.UNSPECIFIED: "#c9cdd4",
    TokenSource.PLAIN: "#c3c9d3",
    TokenSource.RECOVERED: "#a2abb9",
    TokenSource.BONUS: "#808b9c",
    TokenSource.DRAFT_MODEL: "#4b80dd",
    TokenSource.PROMPT_LOOKUP: "#2a9d8f",
    TokenSource.PAST_ANSWERS: "#8b63d0",
    TokenSource.RECYCLED: "#c79a2b",
    TokenSource.LOOKAHEAD: "#cf5d92",
    TokenSource.RANDOM: "#777776",
}
HATCHES = {
    TokenSource.UNSPECIFIED: "",
    TokenSource.PLAIN: "",
    TokenSource.RECOVERED: "..",
    TokenSource.BONUS: "xx",
    TokenSource.DRAFT_MODEL: "//",
    TokenSource.PROMPT_LOOKUP: "\\\\",
    TokenSource.PAST_ANSWERS: "--",
    TokenSource.RECYCLED: "||",
    TokenSource.LOOKAHEAD: "oo",
    TokenSource.RANDOM: "**",
}

# Name of the page's variable -> (light, dark). Colours that are not here suit both.
ROLES = {
    "ink": (INK, "#e7eaf0"),
    "muted": (MUTED, "#9ba6b7"),
    "grid": (GRID, "#333b49"),
    "plain": (PLAIN, "#f2a65f"),
    "speculative": (SPECULATIVE, "#7fa9ff"),
}
