"""The picture of a recovery: a row a rank, a tick a step, from one second before the death on. Text on white, so that it
can be read on a dark page, too."""

import recovery_rows

LEFT, WIDTH, ROW, HEAD = 100, 760, 22, 30
STYLE = ("text{font:13px sans-serif;fill:#333}.name{font-weight:bold}.gap{fill:#f6e3c5}.base{stroke:#ccc}"
         ".step{stroke:#1f6fb2;stroke-width:2}.death{stroke:#c0392b;stroke-width:2.5;fill:none}")
WORDS = {
    "en": {"rank": "rank {}", "axis": "seconds since rank {} was killed", "all": "the next step after {:.2f} s",
           "others": "the others' next step after {:.2f} s, that of all after {:.2f} s",
           "step": "a step that the rank has done", "killed": "killed", "gap": "until all ranks have done a step"},
    "zh": {"rank": "rank {}", "axis": "rank {} 被杀后的秒数", "all": "{:.2f} 秒后完成下一步",
           "others": "其余 rank {:.2f} 秒后完成下一步，全体 {:.2f} 秒后",
           "step": "该 rank 完成的一步", "killed": "被杀", "gap": "直到全体 rank 完成一步"},
}


def window(rows, ranks, killed_in):
    """The rows that the picture shows, times from the death on, and how long it took."""
    rank, at = recovery_rows.death(rows)
    took = recovery_rows.recovery(rows, ranks, killed_in)
    near = [(who, step, round(when - at, 4)) for who, step, when in rows if -1 <= when - at <= took["all"] + 1]
    return {"rows": near, "killed": rank, "others": round(took["others"], 3), "all": round(took["all"], 3)}


def cross(x, y):
    return f'<path d="M{x - 5:.1f} {y - 5:.1f}l10 10m0 -10l-10 10" class="death"/>'


def tick(x, y):
    return f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{y - 7:.1f}" y2="{y + 7:.1f}" class="step"/>'


def legend(words, y):
    parts, x = [], LEFT
    for mark, what in ((tick(x + 4, y), "step"), (cross(x + 254, y), "killed"),
                       (f'<rect x="{x + 340}" y="{y - 7}" width="14" height="14" class="gap"/>', "gap")):
        at = {"step": x + 14, "killed": x + 266, "gap": x + 360}[what]
        parts.append(f'{mark}<text x="{at}" y="{y + 4}">{words[what]}</text>')
    return "".join(parts)


def draw(runs, ranks, language):
    """An SVG of {name: what window() gave}."""
    words = WORDS[language]
    begin, end = -1.0, max(run["all"] for run in runs.values()) + 1.0

    def x(at):
        return LEFT + (at - begin) / (end - begin) * WIDTH

    parts, y = [legend(words, 18)], 30
    for name, run in runs.items():
        # Where training waits for everybody, both times differ by the ranks' own pace alone.
        took = (words["others"].format(run["others"], run["all"]) if run["all"] - run["others"] > 0.2
                else words["all"].format(run["all"]))
        parts.append(f'<text x="8" y="{y + 18}" class="name">{name}: {took}</text>')
        y += HEAD
        parts.append(f'<rect x="{x(0):.1f}" y="{y}" width="{x(run["all"]) - x(0):.1f}" height="{ROW * ranks}" class="gap"/>')
        for rank in range(ranks):
            middle = y + ROW * rank + ROW / 2
            parts.append(f'<text x="8" y="{middle + 4}">{words["rank"].format(rank)}</text>'
                         f'<line x1="{LEFT}" x2="{LEFT + WIDTH}" y1="{middle}" y2="{middle}" class="base"/>')
            parts += [tick(x(at), middle) for who, step, at in run["rows"] if who == rank and step >= 0 and at <= end]
            if rank == run["killed"]:
                parts.append(cross(x(0), middle))
        y += ROW * ranks + 10
    for second in range(int(begin), int(end) + 1):
        parts.append(f'<text x="{x(second):.1f}" y="{y + 12}" text-anchor="middle">{second}</text>')
    killed = next(iter(runs.values()))["killed"]
    parts.append(f'<text x="{LEFT + WIDTH / 2}" y="{y + 32}" text-anchor="middle">{words["axis"].format(killed)}</text>')
    size = f'viewBox="0 0 {LEFT + WIDTH + 20} {y + 44}" width="{LEFT + WIDTH + 20}" height="{y + 44}"'
    return (f'<svg xmlns="http://www.w3.org/2000/svg" {size}><style>{STYLE}</style>'
            '<rect width="100%" height="100%" fill="white"/>\n' + "\n".join(parts) + "\n</svg>\n")
