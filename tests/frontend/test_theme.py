import re
from itertools import pairwise

from frontend import theme


def luminance(hex_colour):
    channels = [int(hex_colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(a, b):
    high, low = sorted((luminance(a), luminance(b)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_both_themes_name_the_same_tokens():
    assert theme.LIGHT.keys() == theme.DARK.keys()


def test_a_light_colour_never_stands_for_two_dark_ones():
    seen = {}
    for name, light in theme.LIGHT.items():
        assert seen.setdefault(light.lower(), theme.DARK[name]) == theme.DARK[name], name


def test_words_are_readable_on_every_ground():
    words = [
        n for n in theme.LIGHT if n in ("ink", "ink-2", "ink-3", "a", "b", "error", "warn") or n.startswith("cat-")
    ]
    for tokens in (theme.LIGHT, theme.DARK):
        for name in words:
            grounds = ("surface",) if name.startswith(("cat-", "error", "warn")) else ("surface", "canvas")
            assert all(contrast(tokens[name], tokens[g]) >= 4.5 for g in grounds), name


def test_magnitude_grows_in_one_direction_of_lightness():
    for tokens, sign in ((theme.LIGHT, -1), (theme.DARK, 1)):
        ramp = [luminance(tokens[f"mag-{i}"]) for i in range(7)]
        assert all(sign * (b - a) > 0 for a, b in pairwise(ramp))


def test_a_diverging_scale_is_flat_inside_the_null():
    stops = theme.beyond_null("sig", 0.4, 0.6)
    neutral = [at for at, token in stops if token == "sig-3"]
    assert neutral == [0.4, 0.6]
    assert [at for at, _ in stops] == sorted(at for at, _ in stops)


def test_a_null_at_the_edge_leaves_one_side_out():
    assert all(token in ("sig-3", "sig-4", "sig-5", "sig-6") for _, token in theme.beyond_null("sig", -0.5, 0.2))


def test_a_fifth_category_gets_a_new_shape_and_no_new_hue():
    styles = theme.categories(("code", "tool", "story", "plan"))
    assert len({s.shape for s in styles.values()}) == 4
    assert {s.mark for s in styles.values()} <= {
        theme.LIGHT[f"mark-{n}"] for n in ("code", "mathematics", "story", "fact")
    }
    many = theme.categories(tuple("abcdefgh"))
    assert len({s.shape for s in many.values()}) == 8


def test_the_variables_of_both_schemes_are_in_the_css():
    css = theme.css()
    assert len(re.findall(r"--ink:", css)) == 2
    assert "data-mantine-color-scheme=dark" in css
