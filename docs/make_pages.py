"""Write the pages of this folder that are made from the code: `make docs` does, and git ignores them."""

import json
from pathlib import Path
from typing import Final

from docs import make_diagnose, make_gallery, make_nccl_rules, make_reference

DOCS: Final = Path(__file__).parent


def pages() -> dict[str, str]:
    """Return the text of each page by its path in this folder."""
    reference = make_reference.pages() | {
        "nccl-rules.md": make_nccl_rules.page(),
        "gallery.md": make_gallery.page(),
    }
    return {
        **{f"reference/{name}": text for name, text in reference.items()},
        f"reference/{make_reference.SCHEMA}": json.dumps(make_reference.answers_schema(), indent=1) + "\n",
        **{f"diagnose/{name}": text for name, text in make_diagnose.pages().items()},
        "evidence/diagnose.md": make_diagnose.sources_page(),
    }


if __name__ == "__main__":
    for name, text in pages().items():
        path = DOCS / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
