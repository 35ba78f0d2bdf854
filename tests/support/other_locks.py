"""Locks as other tools write them, in small."""

import json

COMMIT, DIGEST = "b" * 40, "c" * 64
INDEX, FORGE = "https://index.example/simple", "https://conda.example/conda-forge"
UV = f"""\
version = 1
revision = 3
requires-python = ">=3.11,<3.13"
[[package]]
name = "mine"
version = "0.1"
source = {{ editable = "." }}
dependencies = [
    {{ name = "torch", version = "2.5.1", source = {{ registry = "{INDEX}" }}, marker = "extra == 'extra-4-mine-old'" }},
    {{ name = "torch", version = "2.6.0+cu124", source = {{ registry = "https://download.pytorch.org/whl/cu124" }}, marker = "extra != 'extra-4-mine-old'" }},
    {{ name = "requests", extra = ["socks"] }}, {{ name = "colorama", marker = "sys_platform == 'win32' or (extra == 'extra-4-mine-old' and extra == 'extra-4-mine-new')" }},
    {{ name = "fast" }}, {{ name = "ops" }}, {{ name = "far" }}, {{ name = "special" }},
]
[package.optional-dependencies]
old = [{{ name = "torch", version = "2.5.1", source = {{ registry = "{INDEX}" }} }}]
vis = [{{ name = "cycler" }}]
[package.dev-dependencies]
dev = [{{ name = "pytest" }}]
[[package]]
name = "torch"
version = "2.5.1"
source = {{ registry = "{INDEX}" }}
[[package]]
name = "torch"
version = "2.6.0+cu124"
source = {{ registry = "https://download.pytorch.org/whl/cu124" }}
dependencies = [{{ name = "nvidia-cublas-cu12" }}, {{ name = "numpy", version = "2.2.6", marker = "python_full_version < '3.12'" }}, {{ name = "numpy", version = "2.4.0", marker = "python_full_version >= '3.12'" }}]
[[package]]
name = "requests"
version = "2.32.0"
source = {{ registry = "{INDEX}" }}
[package.optional-dependencies]
socks = [{{ name = "pysocks" }}]
[[package]]
name = "fast"
version = "0.3"
source = {{ git = "https://host.example/fast?subdirectory=py&rev=main#{COMMIT}" }}
[[package]]
name = "ops"
version = "0.1"
source = {{ directory = "ops" }}
[[package]]
name = "far"
version = "1.0"
source = {{ url = "https://host.example/far-1.0.tar.gz" }}
sdist = {{ hash = "sha256:{DIGEST}" }}
""" + "".join(
    f'[[package]]\nname = "{name}"\nversion = "{version}"\nsource = {{ registry = "{index}" }}\n'
    for name, version, index in (
        ("colorama", "0.4.6", INDEX), ("pysocks", "1.7.1", INDEX), ("cycler", "0.12.1", INDEX), ("pytest", "8.0", INDEX),
        ("nvidia-cublas-cu12", "12.4.5.8", INDEX), ("numpy", "2.2.6", INDEX), ("numpy", "2.4.0", INDEX), ("special", "1.0", "https://site.example/"),
    )
)  # fmt: skip
POETRY = f"""\
[[package]]
name = "torch"
version = "2.6.0"
optional = false
groups = ["main"]
[[package]]
name = "nvidia-cuda-runtime-cu12"
version = "12.4.127"
optional = false
groups = ["main"]
markers = "platform_machine == \\"x86_64\\""
[[package]]
name = "async-timeout"
version = "4.0.3"
optional = false
groups = ["main", "dev"]
markers = {{main = "python_version < \\"3.10\\"", dev = "python_version < \\"3.11\\""}}
[[package]]
name = "cycler"
version = "0.12.1"
optional = true
groups = ["main"]
markers = "extra == \\"vis\\""
[[package]]
name = "pytest"
version = "8.0"
optional = false
groups = ["dev"]
[[package]]
name = "fast"
version = "0.3"
optional = false
groups = ["main"]
[package.source]
type = "git"
url = "https://host.example/fast"
reference = "main"
resolved_reference = "{COMMIT}"
[extras]
vis = ["cycler"]
[metadata]
lock-version = "2.1"
python-versions = "^3.11"
"""
PIPENV = json.dumps(
    {
        "_meta": {"pipfile-spec": 6, "requires": {"python_version": "3.11"}, "sources": [{"name": "a", "url": INDEX}, {"name": "b", "url": "https://site.example/"}]},
        "default": {
            "einops": {"version": "==0.8.0", "index": "a", "markers": "python_version >= '3.9'"}, "mine": {"path": ".", "editable": True},
            "fast": {"git": "https://host.example/fast", "ref": COMMIT}, "special": {"version": "==1.0", "index": "b"},
            "colorama": {"version": "==0.4.6", "markers": "sys_platform == 'win32'"},
        },
        "develop": {"pytest": {"version": "==8.0"}},
    }
)  # fmt: skip
PYLOCK = f"""\
lock-version = "1.0"
created-by = "uv"
requires-python = ">=3.11"
dependency-groups = ["dev"]
[[packages]]
name = "einops"
version = "0.8.0"
wheels = [{{ name = "einops-0.8.0-py3-none-any.whl", url = "{INDEX}/einops-0.8.0-py3-none-any.whl", hashes = {{ sha256 = "{DIGEST}" }} }}]
[[packages]]
name = "pytest"
version = "8.0"
marker = "'dev' in dependency_groups"
wheels = [{{ name = "pytest-8.0-py3-none-any.whl", url = "{INDEX}/pytest-8.0-py3-none-any.whl", hashes = {{ sha256 = "{DIGEST}" }} }}]
"""
PIXI_ROWS = f"""\
      - conda: {FORGE}/linux-64/python-3.11.9-h0_0_cpython.conda
      - conda: {FORGE}/linux-64/pytorch-2.6.0-cuda126_generic_py311_h1_200.conda
      - conda: {FORGE}/linux-64/python-xxhash-3.5.0-py311_0.conda
      - conda: {FORGE}/linux-64/libgomp-14.2.0-h7_1.conda
      - conda: {FORGE}/linux-64/assimp-5.4.3-h8_0.conda
      - conda: {FORGE}/linux-64/ffmpeg-7.1.0-h8_0.conda
      - conda: https://conda.example/robots/linux-64/arm-0.1-py311_0.conda
      - pypi: {INDEX}/einops-0.8.0-py3-none-any.whl
      - pypi: git+https://host.example/fast?rev=main#{COMMIT}
"""
PIXI = f"""\
version: 6
environments:
  default:
    channels:
    - url: {FORGE}/
    packages:
      linux-64:
{PIXI_ROWS}  dev:
    channels: []
    packages:
      linux-64:
      - pypi: {INDEX}/pytest-8.0-py3-none-any.whl
packages:
- conda: {FORGE}/linux-64/python-3.11.9-h0_0_cpython.conda
  purls: []
- conda: {FORGE}/linux-64/pytorch-2.6.0-cuda126_generic_py311_h1_200.conda
  purls:
  - pkg:pypi/torch?source=hash-mapping
- conda: {FORGE}/linux-64/python-xxhash-3.5.0-py311_0.conda
  depends:
  - python >=3.11,<3.12.0a0
- conda: https://conda.example/robots/linux-64/arm-0.1-py311_0.conda
  depends:
  - python >=3.11,<3.12.0a0
- pypi: {INDEX}/einops-0.8.0-py3-none-any.whl
  name: einops
  version: 0.8.0
- pypi: {INDEX}/pytest-8.0-py3-none-any.whl
  name: pytest
  version: '8.0'
- pypi: git+https://host.example/fast?rev=main#{COMMIT}
  name: fast
  version: 0.3.0
"""
CONDA_LOCK = "version: 1\nmetadata:\n  platforms: [linux-64, osx-64]\npackage:\n" + "".join(
    f"- {{name: {name}, version: '{version}', manager: {manager}, platform: {platform}, category: {category}, dependencies: {{{needs}}}, url: '{url}'}}\n"
    for name, version, manager, platform, category, needs, url in (
        ("python", "3.11.9", "conda", "linux-64", "main", "", f"{FORGE}/linux-64/python-3.11.9-h0_0_cpython.conda"),
        ("numpy", "1.26.4", "conda", "linux-64", "main", "python: '>=3.11'", f"{FORGE}/linux-64/numpy-1.26.4-py311_0.conda"),
        ("numpy", "1.26.4", "conda", "osx-64", "main", "python: '>=3.11'", f"{FORGE}/osx-64/numpy-1.26.4-py311_0.conda"),
        ("cuda-version", "12.4", "conda", "linux-64", "main", "", f"{FORGE}/noarch/cuda-version-12.4-h3_3.conda"),
        ("cuda-nvcc", "12.4.131", "conda", "linux-64", "main", "", f"{FORGE}/linux-64/cuda-nvcc-12.4.131-h3_3.conda"),
        ("einops", "0.8.0", "pip", "linux-64", "main", "", f"{INDEX}/einops-0.8.0-py3-none-any.whl"),
        ("pytest", "8.0", "pip", "linux-64", "dev", "", f"{INDEX}/pytest-8.0-py3-none-any.whl"),
    )
)  # fmt: skip
