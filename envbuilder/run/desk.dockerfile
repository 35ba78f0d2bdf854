# `@name@` at a desk, with git, ps and a second environment for a project's own packages. Written by envbuilder @version@.
#
# The environment's own files stay as they are. Put your site's certificates beside this file, as `*.crt`.
# A recipe with `apt: [git, openssh-client, procps, python3-pip-whl]` has all of it: then nothing is downloaded here.
ARG ENVIRONMENT=@image@
FROM ${ENVIRONMENT}
USER root
# A mirror of the distribution.
ARG MIRROR
RUN --mount=type=bind,target=/desk <<'SCRIPT'
#!/bin/sh
set -eu
export DEBIAN_FRONTEND=noninteractive
mkdir -p /var/log /usr/local/share/ca-certificates
for one in /desk/*.crt; do
  [ -e "$one" ] || continue
  cp "$one" /usr/local/share/ca-certificates
  printf '[global]\ncert = /etc/ssl/certs/ca-certificates.crt\n' >/etc/pip.conf
done
[ ! -e /etc/pip.conf ] || update-ca-certificates

wanted="git openssh-client procps python3-pip-whl"
if ! dpkg --status $wanted >/dev/null 2>&1; then
  sources=/etc/apt/sources.list
  if ! ls $sources $sources.d/* >/dev/null 2>&1; then
    mirror=${MIRROR:-@mirror@}
    echo "deb ${mirror%% *} @suite@ @components@" >$sources
  fi
  apt-get update
  apt-get install --yes --no-install-recommends $wanted
  apt-get clean
  rm -rf /var/lib/apt/lists/*
fi
SCRIPT
# NAME:HOME of the person on the host: root may have another home, and no name.
ARG HOST_PERSON
RUN <<'SCRIPT'
#!/bin/sh
set -eu
# It sees the environment's packages, and puts its own before them. Its programs, torchrun among them, see both.
venv=@venv@
packages='import sysconfig; print(sysconfig.get_path("purelib"))'
/opt/env/bin/python -m venv --without-pip "$venv"
own=$("$venv/bin/python" -c "$packages")
echo "import site; site.addsitedir('$(/opt/env/bin/python -c "$packages")')" >"$own/environment.pth"
wheels=/usr/share/python-wheels
if ! "$venv/bin/python" -m ensurepip 2>/dev/null; then
  "$venv/bin/python" "$(echo $wheels/pip-*.whl)/pip" install --ignore-installed --no-index --find-links $wheels pip
fi
for program in $(grep -l '^#!/opt/env/bin/python' /opt/env/bin/* || true); do
  sed "1s|.*|#!$venv/bin/python|" "$program" >"$venv/bin/${program##*/}"
  chmod 755 "$venv/bin/${program##*/}"
done
# A login shell gets another PATH from /etc/profile.
echo "PATH=$venv/bin:\$PATH" >/etc/profile.d/venv.sh
# Compiled code fits one version of torch, so pip must not bring another.
/opt/env/bin/python - >"$venv/constraints.txt" <<'END'
import importlib.metadata as metadata

for one in metadata.distributions():
    if one.metadata["Name"] in ("torch", "torchvision", "torchaudio"):
        print(f"{one.metadata['Name']}=={one.version}")
END

# The files of a host's root are root's here too. For any other person, the tools change the number of @user@.
owner=@user@
case $HOST_PERSON in
  root:* | *:/root) sed -i "s/^$owner:\([^:]*\):[0-9]*:[0-9]*:/$owner:\1:0:0:/" /etc/passwd ;;
esac
chown -R "$owner" "@home@"
SCRIPT
ENV VIRTUAL_ENV=@venv@ PATH=@venv@/bin:$PATH PIP_CONSTRAINT=@venv@/constraints.txt
