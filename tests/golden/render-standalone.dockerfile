--- 
+++ 
@@ -22,0 +23,2 @@
+# Where the releases of python-build-standalone are.
+ARG PYTHON_MIRROR=https://github.com/astral-sh/python-build-standalone/releases/download
@@ -59,0 +62,8 @@
+END
+
+file 644 /kit/install_python.py <<'END'
+|the program install_python.py
+END
+
+file 644 /kit/compile_all.py <<'END'
+|the program compile_all.py
@@ -114 +124 @@
-|  "file": "/opt/envbuilder/extensions/fused-2d4456f57843970f/fused.so",
+|  "file": "/opt/envbuilder/extensions/fused-3245edd0749ee324/fused.so",
@@ -118 +128 @@
-|  "key": "2d4456f57843970f7aad8ddc96f6d742e229e290035818f26bc6d03caac94d91",
+|  "key": "3245edd0749ee324436951706c79e9c1444f63334b6ec872d0ec70042675a509",
@@ -331,0 +342,19 @@
+# The standalone Python.
+FROM workshop AS standalone
+ARG PYTHON_MIRROR
+RUN --mount=type=secret,id=ca,target=/run/secrets/ca --mount=type=bind,from=artifacts,target=/artifacts <<'SCRIPT'
+#!/bin/bash
+set -euo pipefail
+for ca in /run/secrets/ca /artifacts/certificates.pem; do
+  if [ -s "$ca" ]; then export CURL_CA_BUNDLE="$ca" PIP_CERT="$ca" SSL_CERT_FILE="$ca"; fi
+done
+name=cpython-3.11.9+20260101-x86_64-unknown-linux-gnu-install_only_stripped.tar.gz file=/standalone/python.tar.gz
+mkdir /standalone
+if [ -e "/artifacts/$name" ]; then cp "/artifacts/$name" $file
+else
+  url="${PYTHON_MIRROR%/}/20260101/$name"
+  curl --fail --silent --show-error --location --retry 3 --output $file "$url"
+fi
+echo "11a4a60b518bf24989d481468076e5d5982884626aed9faeb35b8576fcd223e1  $file" | sha256sum --check --quiet
+SCRIPT
+
@@ -346,0 +376,9 @@
+# The standalone Python.
+FROM os AS interpreter
+RUN --network=none --mount=type=bind,from=kit,source=/kit,target=/kit --mount=type=bind,from=standalone,source=/standalone,target=/standalone <<'SCRIPT'
+#!/bin/bash
+set -euo pipefail
+tar --extract --gzip --touch --no-same-owner --no-same-permissions --file /standalone/python.tar.gz --directory /opt
+/opt/python/bin/python3.11 -B /kit/install_python.py /opt/python
+SCRIPT
+
@@ -348 +386 @@
-FROM os AS python
+FROM interpreter AS python
@@ -364 +402 @@
-ln -s lib lib64 && ln -s /usr/bin/python3.11 bin/python
+ln -s lib lib64 && ln -s /opt/python/bin/python3.11 bin/python
@@ -366 +404 @@
-printf 'home = /usr/bin\ninclude-system-site-packages = false\nversion = 3.11\n' >pyvenv.cfg
+printf 'home = /opt/python/bin\ninclude-system-site-packages = false\nversion = 3.11\n' >pyvenv.cfg
@@ -402 +440 @@
-/usr/bin/python3.11 /kit/check_byte_code.py /opt/env/lib/python3.11/site-packages
+/opt/python/bin/python3.11 /kit/check_byte_code.py /opt/env/lib/python3.11/site-packages
@@ -416 +454 @@
-FROM os AS start
+FROM interpreter AS start
@@ -474 +512 @@
-PYTHONHASHSEED=0 PYTHONWARNINGS=ignore /usr/bin/python3.11 -m compileall -q --invalidation-mode unchecked-hash \
+PYTHONHASHSEED=0 PYTHONWARNINGS=ignore /opt/python/bin/python3.11 -m compileall -q --invalidation-mode unchecked-hash \
@@ -480,0 +519 @@
+COPY --link --from=interpreter /opt/python /opt/python
@@ -489 +528 @@
-LABEL devcontainer.metadata="[{\"capAdd\":[\"SYS_PTRACE\"],\"containerEnv\":{\"PYTHONNOUSERSITE\":\"1\"},\"customizations\":{\"vscode\":{\"extensions\":[\"ms-python.python\",\"ms-python.debugpy\",\"ms-vscode.cpptools\"],\"settings\":{\"C_Cpp.default.compilerPath\":\"/usr/local/bin/g++\",\"C_Cpp.default.includePath\":[\"\${workspaceFolder}/**\",\"/opt/env/lib/python3.11/site-packages/torch/include\",\"/opt/env/lib/python3.11/site-packages/torch/include/torch/csrc/api/include\",\"/usr/include/python3.11\"],\"python.defaultInterpreterPath\":\"/opt/env/bin/python\"}}},\"hostRequirements\":{\"gpu\":\"optional\"},\"init\":true,\"mounts\":[\"type=tmpfs,target=/dev/shm\"],\"remoteUser\":\"vscode\",\"updateRemoteUserUID\":true,\"userEnvProbe\":\"none\"}]"
+LABEL devcontainer.metadata="[{\"capAdd\":[\"SYS_PTRACE\"],\"containerEnv\":{\"PYTHONNOUSERSITE\":\"1\"},\"customizations\":{\"vscode\":{\"extensions\":[\"ms-python.python\",\"ms-python.debugpy\",\"ms-vscode.cpptools\"],\"settings\":{\"C_Cpp.default.compilerPath\":\"/usr/local/bin/g++\",\"C_Cpp.default.includePath\":[\"\${workspaceFolder}/**\",\"/opt/env/lib/python3.11/site-packages/torch/include\",\"/opt/env/lib/python3.11/site-packages/torch/include/torch/csrc/api/include\",\"/opt/python/include/python3.11\"],\"python.defaultInterpreterPath\":\"/opt/env/bin/python\"}}},\"hostRequirements\":{\"gpu\":\"optional\"},\"init\":true,\"mounts\":[\"type=tmpfs,target=/dev/shm\"],\"remoteUser\":\"vscode\",\"updateRemoteUserUID\":true,\"userEnvProbe\":\"none\"}]"
