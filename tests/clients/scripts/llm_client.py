"""llm, the command line tool: an answer, and one that fits a schema."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

URL = sys.argv[1]
MODEL = f"""
- model_id: headrace
  model_name: m
  api_base: {URL}/v1
  supports_schema: true
"""

with tempfile.TemporaryDirectory() as folder:
    Path(folder, "extra-openai-models.yaml").write_text(MODEL)

    def ask(*arguments: str) -> str:
        command = [sys.executable, "-m", "llm", "prompt", "-m", "headrace", "--key", "none", *arguments]
        return subprocess.run(
            command, env=os.environ | {"LLM_USER_PATH": folder}, check=True, capture_output=True, text=True
        ).stdout

    assert ask("hi", "-o", "max_tokens", "20").strip()
    found = json.loads(
        ask("hi", "--schema", '{"type": "object", "properties": {"days": {"type": "integer"}}, "required": ["days"]}')
    )
    assert isinstance(found["days"], int)
