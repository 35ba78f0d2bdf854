--- 
+++ 
@@ -60,0 +61,8 @@
+END
+
+file 644 /kit/install_python.py <<'END'
+|the program install_python.py
+END
+
+file 644 /kit/compile_all.py <<'END'
+|the program compile_all.py
@@ -333,0 +342,33 @@
+# The standalone Python.
+FROM workshop AS standalone
+ARG DEBIAN_MIRROR
+ARG DEBIAN_SECURITY
+ARG UBUNTU_MIRROR
+ARG CUDA_REDIST
+ARG PYTHON_MIRROR
+RUN --mount=type=secret,id=ca,target=/run/secrets/ca --mount=type=bind,from=artifacts,target=/artifacts <<'SCRIPT'
+#!/bin/bash
+set -euo pipefail
+file() {
+  mkdir -p "${2%/*}"
+  sed 's/^|//' >"$2"
+  chmod "$1" "$2"
+}
+for ca in /run/secrets/ca /artifacts/certificates.pem; do
+  if [ -s "$ca" ]; then export CURL_CA_BUNDLE="$ca" PIP_CERT="$ca" SSL_CERT_FILE="$ca"; fi
+done
+mkdir /standalone
+file 644 /standalone/list <<'END'
+|11a4a60b518bf24989d481468076e5d5982884626aed9faeb35b8576fcd223e1  20260101/cpython-3.11.9+20260101-x86_64-unknown-linux-gnu-install_only_stripped.tar.gz
+END
+# shellcheck disable=SC2016  # it is apt that knows what this stands for
+mirror=${PYTHON_MIRROR:-https://github.com/astral-sh/python-build-standalone/releases/download/}
+while read -r sha256 path; do
+  file=/standalone/${path##*/}
+  if [ -e "/artifacts/${path##*/}" ]; then cp "/artifacts/${path##*/}" "$file"
+  else curl --fail --silent --show-error --location --retry 3 --output "$file" "${mirror%/}/$path"; fi
+  echo "$sha256  $file" | sha256sum --check --quiet
+done </standalone/list
+rm /standalone/list
+SCRIPT
+
@@ -348,0 +390,9 @@
+# The standalone Python.
+FROM os AS interpreter
+RUN --network=none --mount=type=bind,from=kit,source=/kit,target=/kit --mount=type=bind,from=standalone,source=/standalone,target=/standalone <<'SCRIPT'
+#!/bin/bash
+set -euo pipefail
+tar --extract --gzip --touch --no-same-owner --no-same-permissions --file /standalone/*.tar.gz --directory /opt
+/opt/python/bin/python3.11 -B /kit/install_python.py /opt/python
+SCRIPT
+
@@ -350 +400 @@
-FROM os AS python
+FROM interpreter AS python
@@ -366 +416 @@
-ln -s lib lib64 && ln -s /usr/bin/python3.11 bin/python
+ln -s lib lib64 && ln -s /opt/python/bin/python3.11 bin/python
@@ -368 +418 @@
-printf 'home = /usr/bin\ninclude-system-site-packages = false\nversion = 3.11\n' >pyvenv.cfg
+printf 'home = /opt/python/bin\ninclude-system-site-packages = false\nversion = 3.11\n' >pyvenv.cfg
@@ -404 +454 @@
-/usr/bin/python3.11 /kit/check_byte_code.py /opt/env/lib/python3.11/site-packages
+/opt/python/bin/python3.11 /kit/check_byte_code.py /opt/env/lib/python3.11/site-packages
@@ -417 +467 @@
-env -i PATH=/opt/env/bin:/usr/local/cuda/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 LC_ALL=C.UTF-8 TZ=UTC PYTHONHASHSEED=0 PYTHONWARNINGS=ignore /usr/bin/python3.11 /kit/extensions.py /kit/extensions/spec.json /tmp/parts /root/out
+env -i PATH=/opt/env/bin:/usr/local/cuda/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 LC_ALL=C.UTF-8 TZ=UTC PYTHONHASHSEED=0 PYTHONWARNINGS=ignore /opt/python/bin/python3.11 /kit/extensions.py /kit/extensions/spec.json /tmp/parts /root/out
@@ -422 +472 @@
-FROM os AS start
+FROM interpreter AS start
@@ -487 +537 @@
-PYTHONHASHSEED=0 PYTHONWARNINGS=ignore /usr/bin/python3.11 -m compileall -q --invalidation-mode unchecked-hash \
+PYTHONHASHSEED=0 PYTHONWARNINGS=ignore /opt/python/bin/python3.11 -m compileall -q --invalidation-mode unchecked-hash \
@@ -493,0 +544 @@
+COPY --link --from=interpreter /opt/python /opt/python
@@ -502 +553 @@
-LABEL devcontainer.metadata="[{\"capAdd\":[\"SYS_PTRACE\"],\"containerEnv\":{\"PYTHONNOUSERSITE\":\"1\"},\"customizations\":{\"vscode\":{\"extensions\":[\"ms-python.python\",\"ms-python.debugpy\",\"ms-vscode.cpptools\"],\"settings\":{\"C_Cpp.default.compilerPath\":\"/usr/local/bin/g++\",\"C_Cpp.default.includePath\":[\"\${workspaceFolder}/**\",\"/opt/env/lib/python3.11/site-packages/torch/include\",\"/opt/env/lib/python3.11/site-packages/torch/include/torch/csrc/api/include\",\"/usr/include/python3.11\"],\"python.defaultInterpreterPath\":\"/opt/env/bin/python\"}}},\"hostRequirements\":{\"gpu\":\"optional\"},\"init\":true,\"mounts\":[\"type=tmpfs,target=/dev/shm\"],\"remoteUser\":\"vscode\",\"updateRemoteUserUID\":true,\"userEnvProbe\":\"none\"}]"
+LABEL devcontainer.metadata="[{\"capAdd\":[\"SYS_PTRACE\"],\"containerEnv\":{\"PYTHONNOUSERSITE\":\"1\"},\"customizations\":{\"vscode\":{\"extensions\":[\"ms-python.python\",\"ms-python.debugpy\",\"ms-vscode.cpptools\"],\"settings\":{\"C_Cpp.default.compilerPath\":\"/usr/local/bin/g++\",\"C_Cpp.default.includePath\":[\"\${workspaceFolder}/**\",\"/opt/env/lib/python3.11/site-packages/torch/include\",\"/opt/env/lib/python3.11/site-packages/torch/include/torch/csrc/api/include\",\"/opt/python/include/python3.11\"],\"python.defaultInterpreterPath\":\"/opt/env/bin/python\"}}},\"hostRequirements\":{\"gpu\":\"optional\"},\"init\":true,\"mounts\":[\"type=tmpfs,target=/dev/shm\"],\"remoteUser\":\"vscode\",\"updateRemoteUserUID\":true,\"userEnvProbe\":\"none\"}]"
