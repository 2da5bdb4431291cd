#!/bin/bash
# Makes a private CA and a certificate per role: deploy/certificates.sh FOLDER [GATEWAY_NAME...]
# For trying things out and for small installations; anything that issues certificates with the name
# ROLE.paceline does as well. Run again to renew: the services notice, and the CA stays.
set -euo pipefail

folder=${1:?the folder to write to}
shift
mkdir -p "$folder"
cd "$folder"
umask 077

if [[ ! -e ca.pem ]]; then
  openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 3650 \
    -subj "/CN=paceline CA" -keyout ca-key.pem -out ca.pem 2>/dev/null
fi

issue() { # FILE NAMES...
  local file=$1 names
  shift
  names=$(printf ',DNS:%s' "$@")
  openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj "/CN=$file" \
    -keyout "$file-key.new" -out "$file.csr" 2>/dev/null
  openssl x509 -req -in "$file.csr" -CA ca.pem -CAkey ca-key.pem -days 90 -out "$file.new" \
    -extfile <(printf 'subjectAltName=%s\nextendedKeyUsage=serverAuth,clientAuth\n' "${names#,}") \
    2>/dev/null
  rm "$file.csr"
  # The key first: until the certificate follows, a service keeps what it has.
  mv "$file-key.new" "$file-key.pem"
  mv "$file.new" "$file.pem"
}

for role in verifier drafter operator; do
  issue "$role" "$role.paceline"
done
issue gateway gateway.paceline localhost "$@"
echo "certificates in $folder: ca, gateway, verifier, drafter, operator"
