#!/bin/sh
# NAME_FILE=/run/secrets/x gives NAME the file's content; then the project is begun (or gets what it lacks), and the command runs.
set -eu
for setting in $(env | sed -n 's/^\([A-Z_]*\)_FILE=\/run\/secrets\/.*/\1/p'); do
    path=$(printenv "${setting}_FILE")
    export "$setting=$(cat "$path")"
done
umask 077
if [ "$1" = terrine ] || [ "$1" = prefect ]; then
    terrine init . >/dev/null
fi
exec "$@"
