"""Searches the built documentation for the questions of a first day, and checks the results.

`python tools/search_docs.py docs/_build/html` opens the search page in Chromium for each question.
One of the first three results has to be a page with the answer.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import urllib.parse
from pathlib import Path

ANSWERS = {
    "hang": ("observing", "concepts"),
    "stuck": ("faq",),
    "deadlock": ("faq",),
    "resume": ("checkpoints", "data"),
    "4 GPUs": ("from_one_process", "faq"),
    "two machines": ("several_machines", "faq"),
    "out of memory": ("faq",),
    "slow": ("observing", "stragglers"),
    "NaN": ("values",),
    "batch size": ("concepts",),
    "install": ("installation",),
    "tutorial": ("first_run",),
    "FAQ": ("faq",),
    "NCCL": ("gpu",),
}
_RESULT = re.compile(r'<li[^>]*>(?:<[^>]*>)*<a href="([^"#]*)')


def found(browser: str, folder: Path, question: str) -> list[str]:
    """Returns the search results, the best first."""
    query = urllib.parse.urlencode({"q": question})
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"]
    command += ["--allow-file-access-from-files", "--virtual-time-budget=10000"]
    done = subprocess.run(
        [*command, f"{(folder / 'search.html').resolve().as_uri()}?{query}"],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    results = done.stdout.partition('id="search-results"')[2]
    return list(dict.fromkeys(page.removesuffix(".html") for page in _RESULT.findall(results)))


def main(folder: Path) -> int:
    """Returns 1 if a question has no answer among its first three results."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        print("The search was not tried: there is no chromium.")
        return 0
    bad = 0
    for question, pages in ANSWERS.items():
        best = found(browser, folder, question)[:3]
        if not set(best) & set(pages):
            bad += 1
            print(f"The search for {question!r} finds {best}, and none of {list(pages)}.")
    print(f"{len(ANSWERS) - bad} of {len(ANSWERS)} questions are answered by the search.")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
