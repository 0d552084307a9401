#!/bin/sh
# Checks a pull request of a manifest repository and keeps one comment on it up to date, with errors
# (minik8s validate) and planned changes (minik8s plan). Needs sh, git, curl and minik8s.
#
# Nothing from the pull request is run: manifests are read, never executed. Take this
# script from the base branch, not from the pull request (the templates do).
#
# The script only ever changes a comment written by the token's own account: anybody can write one
# that looks like it.
#
# Exit code: 0 on success (with or without changes), 1 if manifests have errors or the comment can't
# be written with the given token.
#
# Detected in GitHub Actions, GitLab CI, Gitea and Forgejo Actions; set them elsewhere:
#   MINIK8S_FORGE    github, gitlab or gitea (Forgejo: gitea)
#   MINIK8S_API      address of the API, for example https://git.example.org/api/v1
#   MINIK8S_PROJECT  owner/name; for GitLab the project's id
#   MINIK8S_PR       number of the pull request
#   MINIK8S_BASE, MINIK8S_HEAD   revisions
# Always set by you:
#   MINIK8S_TOKEN    a token that may write comments; without one the plan is only printed
# Optional:
#   MINIK8S_BIN      the program (minik8s)
#   MINIK8S_PATH     folder of the repository that the source reads (all of it)
#   MINIK8S_STRICT   true for a strict source, where a bad file blocks the whole commit
#   MINIK8S_LOGIN    the account of the token, if the forge does not report it: tokens of
#                    GitHub Apps ("name[bot]"), Gitea's tokens without the scope read:user
set -eu

say() { printf 'minik8s-review: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }

bin=${MINIK8S_BIN:-minik8s}
folder=${MINIK8S_PATH:-}
strict=
[ "${MINIK8S_STRICT:-false}" != true ] || strict=--strict
account=${MINIK8S_LOGIN:-}
command -v "$bin" >/dev/null 2>&1 || die "there is no program $bin; name it with MINIK8S_BIN"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 1' HUP INT TERM

# Detects the forge, and the project and pull request in it.
forge=${MINIK8S_FORGE:-}
if [ -z "$forge" ]; then
    if [ -n "${GITEA_ACTIONS:-}${FORGEJO_ACTIONS:-}" ]; then forge=gitea
    elif [ -n "${GITHUB_ACTIONS:-}" ]; then forge=github
    elif [ -n "${GITLAB_CI:-}" ]; then forge=gitlab
    fi
fi
case $forge in
    github | gitea)
        api=${MINIK8S_API:-${GITHUB_API_URL:-}}
        project=${MINIK8S_PROJECT:-${GITHUB_REPOSITORY:-}}
        # refs/pull/7/merge
        ref=${GITHUB_REF:-}; ref=${ref#refs/pull/}
        number=${MINIK8S_PR:-${ref%%/*}}
        base=${MINIK8S_BASE:-${GITHUB_BASE_REF:+origin/$GITHUB_BASE_REF}}
        list="$api/repos/$project/issues/$number/comments"
        one="$api/repos/$project/issues/comments"
        change=PATCH
        ;;
    gitlab)
        api=${MINIK8S_API:-${CI_API_V4_URL:-}}
        project=${MINIK8S_PROJECT:-${CI_PROJECT_ID:-}}
        number=${MINIK8S_PR:-${CI_MERGE_REQUEST_IID:-}}
        base=${MINIK8S_BASE:-${CI_MERGE_REQUEST_TARGET_BRANCH_NAME:+origin/$CI_MERGE_REQUEST_TARGET_BRANCH_NAME}}
        list="$api/projects/$project/merge_requests/$number/notes"
        one=$list
        change=PUT
        ;;
    '') base=${MINIK8S_BASE:-}; api='' project='' number='' ;;
    *) die "MINIK8S_FORGE=$forge is not known; write github, gitlab or gitea" ;;
esac
head=${MINIK8S_HEAD:-HEAD}
[ -n "$base" ] || die "no base is known; name the target branch with MINIK8S_BASE"

# Runs a command whose output names files of the pull request. A name may look like a command to the
# runner (::warning …), so the runner ignores commands until it reads the stop word again.
unheeded() {
    case $forge in github | gitea) ;; *) "$@"; return ;; esac
    word=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')
    printf '::stop-commands::%s\n' "$word"
    ended=0
    "$@" || ended=$?
    printf '::%s::\n' "$word"
    return "$ended"
}

# Reports errors at their place in the files.
failed=0
case $forge in
    github) "$bin" validate -o github "./$folder" || failed=1 ;;
    *) unheeded "$bin" validate "./$folder" || failed=1 ;;
esac

# Plans the changes. The plan is also printed for manifests with errors.
# $strict is one word or none.
# shellcheck disable=SC2086
plan() { "$bin" plan --base "$base" --head "$head" --path "$folder" $strict -o "$1"; }
code=0
plan markdown >"$work/plan.md" || code=$?
case $code in
    0 | 2) ;;
    *) failed=1 ;;
esac
wrong="the manifests have errors"
[ -s "$work/plan.md" ] || { failed=1; wrong="there is no plan; see the line above"; }
[ -z "${GITHUB_STEP_SUMMARY:-}" ] || cat "$work/plan.md" >>"$GITHUB_STEP_SUMMARY"

print() {
    [ ! -s "$work/plan.md" ] || unheeded plan text || true
    [ "$failed" = 0 ] || say "$wrong"
    exit "$failed"
}
if [ -z "$forge" ] || [ -z "$api" ] || [ -z "$project" ] || [ -z "$number" ]; then
    say "this is not a pull request of a known forge: the plan is only printed"
    print
fi
if [ -z "${MINIK8S_TOKEN:-}" ]; then
    say "no MINIK8S_TOKEN, as in a pull request of a fork: the plan is only printed"
    print
fi

case $forge in
    github) login="Authorization: Bearer $MINIK8S_TOKEN" ;;
    gitea) login="Authorization: token $MINIK8S_TOKEN" ;;
    gitlab) login="PRIVATE-TOKEN: $MINIK8S_TOKEN" ;;
esac
# ask METHOD URL ANSWER [BODY]: sends a request and sets $status. The token is passed through a pipe,
# so that no process list shows it.
ask() {
    method=$1 url=$2 answer=$3
    shift 3
    if [ $# -gt 0 ]; then set -- --data-binary "@$1"; else set -- --retry 3; fi
    status=$(printf 'header = "%s"\n' "$login" | curl --config - --silent --show-error \
        --max-time 60 --request "$method" --header 'Content-Type: application/json' \
        --header 'Accept: application/json' --output "$answer" --write-out '%{http_code}' \
        "$@" "$url") || die "cannot reach $api"
}
# Like ask, but exits on any answer other than success.
call() {
    ask "$@"
    succeed
}
succeed() {
    case $status in
        2??) return 0 ;;
        401) die "$forge refused the token (HTTP 401): see whether MINIK8S_TOKEN is right and not expired" ;;
        403)
            say "the token may not write comments (HTTP 403), as in a pull request of a fork: the plan is only printed"
            say "else give it the right to: 'pull-requests: write' in GitHub, scope 'api' in GitLab, 'write:issue' in Gitea"
            print
            ;;
        404) die "$forge knows no such pull request, or hides it from this token (HTTP 404): $project, $number" ;;
        *) die "$forge answered with HTTP $status to $method $url" ;;
    esac
}

# Finds the account of our comments. GitHub Actions' token belongs to no user, so it can't ask.
if [ -z "$account" ]; then
    ask GET "$api/user" "$work/user"
    case $forge:$status in
        github:403 | github:404) account='github-actions[bot]' ;;
        *:403) die "$forge does not say whose the token is (HTTP 403): give it the scope read:user, or set MINIK8S_LOGIN" ;;
        *)
            succeed
            account=$("$bin" find-comment --whoami <"$work/user") || die "cannot read whose token it is"
            ;;
    esac
fi

# Finds the newest comment of an earlier run, on any page.
id=
page=1
pages_max=50
: >"$work/before"
while [ "$page" -le "$pages_max" ]; do
    call GET "$list?per_page=100&limit=100&page=$page" "$work/page"
    # The last page, or a forge without pages.
    if [ "$(tr -d ' \t\r\n' <"$work/page")" = '[]' ] || cmp -s "$work/page" "$work/before"; then break; fi
    found=$("$bin" find-comment --by "$account" <"$work/page") || die "cannot read the comments of $forge"
    if [ -n "$found" ] && [ "$found" -gt "${id:-0}" ]; then id=$found; fi
    mv "$work/page" "$work/before"
    page=$((page + 1))
done

# A failed plan is written, too: otherwise the former plan would look valid.
plan comment >"$work/body" 2>/dev/null || true
[ -s "$work/body" ] || die "there is nothing to write as a comment"
if [ -n "$id" ]; then
    ask "$change" "$one/$id" "$work/answer" "$work/body"
    case $status in
        # Locked, or removed meanwhile. Writing a new one shows if the token may write at all.
        403 | 404)
            say "comment $id can't be changed (HTTP $status): a new one is written"
            id=
            ;;
        *)
            succeed
            say "comment $id is up to date"
            ;;
    esac
fi
if [ -z "$id" ]; then
    call POST "$list" "$work/answer" "$work/body"
    say "the plan is a comment now"
fi
[ "$failed" = 0 ] || say "$wrong"
exit "$failed"
