--- 
+++ 
@@ -96,0 +97,4 @@
+END
+
+file 644 /kit/customize/sitecustomize.py <<'END'
+|the program sitecustomize.py
@@ -403,0 +408,14 @@
+file 644 /tmp/requirements.txt <<'END'
+|# zlang-1.0.tar.gz
+|zlang==1.0 --hash=sha256:90ee3dfa9221e43f2df5216d4150bb9bb05463ed799a20db603ce25a98345a1c
+END
+offline=--no-index
+while read -r sign name; do [ "$sign" != '#' ] || [ -e "/artifacts/$name" ] || offline=; done </tmp/requirements.txt
+file 644 /tmp/tools.txt <<'END'
+|# setuptools-80.0.0-py3-none-any.whl
+|setuptools==80.0.0 --hash=sha256:f477c3c6df80374f9a62f204f9fb7f460f9ff3bae89b5170f8e8e6f7ba0efe10
+|# wheel-0.45.0-py3-none-any.whl
+|wheel==0.45.0 --hash=sha256:0fb372d361dcd53b9d0b4592cdf8ae94d23b4610faf64149ded6b0356546f81d
+END
+while read -r sign name; do [ "$sign" != '#' ] || [ -e "/artifacts/$name" ] || offline=; done </tmp/tools.txt
+CC=gcc CXX=g++ MAX_JOBS=4 SOURCE_DATE_EPOCH=315619200 LDFLAGS=-Wl,--build-id=none,--strip-all PYTHONPATH=/kit/customize PYTHONDONTWRITEBYTECODE=1 PYTHONHASHSEED=0 /kit/uv pip install --no-config --no-deps --require-hashes --requirement /tmp/requirements.txt --python /opt/env/bin/python --link-mode copy --find-links /artifacts $offline --build-constraints /tmp/tools.txt --compile-bytecode
@@ -405 +423 @@
-rm -rf /tmp/uv /tmp/requirements.txt && chmod 644 /opt/env/.lock
+rm -rf /tmp/uv /tmp/requirements.txt /tmp/tools.txt && chmod 644 /opt/env/.lock
