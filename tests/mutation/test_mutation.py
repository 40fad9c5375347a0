"""The list of mutants that may live is of lines that there are, and says why."""

from .__main__ import ROOT, all_modules, change_in, listed

DIFF = """# timeline.tail.x: survived
--- timeline/tail.py
+++ timeline/tail.py
@@ -3,6 +3,6 @@
     self._sizes += sizes
-    self.bytes += sum(sizes)
+    self.bytes = sum(sizes)
"""


def test_a_change_is_what_a_diff_removes_and_adds() -> None:
    assert change_in(DIFF) == ("- self.bytes += sum(sizes)", "+ self.bytes = sum(sizes)")


def test_each_entry_is_of_a_line_that_there_is_and_says_why() -> None:
    judged, may_live = listed()
    assert judged <= set(all_modules())
    for (module, change), reason in may_live.items():
        text = (ROOT / f"{module.replace('.', '/')}.py").read_text(encoding="utf-8")
        lines = {line.strip() for line in text.splitlines()}
        assert {line[2:] for line in change if line[0] == "-"} <= lines, change
        assert reason.startswith(("equivalent: ", "tolerated: ")), reason
