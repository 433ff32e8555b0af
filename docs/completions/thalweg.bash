# Completions of thalweg for bash: put this where bash-completion looks, or source it.
_thalweg() {
    local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]}
    local command=${COMP_WORDS[1]}
    COMPREPLY=()
    case $before in
        -o|--output) mapfile -t COMPREPLY < <(compgen -f -- "$word"); return ;;
        --record) :; return ;;
        --header) :; return ;;
        --by) :; return ;;
        --memory) :; return ;;
        --scratch) mapfile -t COMPREPLY < <(compgen -d -- "$word"); return ;;
        --scratch-limit) :; return ;;
        --threads) :; return ;;
        --io) mapfile -t COMPREPLY < <(compgen -W 'auto uring threads' -- "$word"); return ;;
        --pick) mapfile -t COMPREPLY < <(compgen -W 'range hash robin' -- "$word"); return ;;
        --parts) :; return ;;
        --seed) :; return ;;
        --type) mapfile -t COMPREPLY < <(compgen -W 'inner left anti' -- "$word"); return ;;
        --right-record) :; return ;;
        --right-by) :; return ;;
        --between) :; return ;;
        --start) :; return ;;
        --summary) mapfile -t COMPREPLY < <(compgen -f -- "$word"); return ;;
        --streams) :; return ;;
        --limit) :; return ;;
        --nodes) :; return ;;
        --cluster) :; return ;;
        --shares) mapfile -t COMPREPLY < <(compgen -W 'planned equal' -- "$word"); return ;;
        --simulate) :; return ;;
        --identity) mapfile -t COMPREPLY < <(compgen -d -- "$word"); return ;;
        --on) :; return ;;
        --ssh) :; return ;;
        --no-disk) :; return ;;
        --there) :; return ;;
        --exclude) :; return ;;
        --include) :; return ;;
        --filter) :; return ;;
        --max-delete) :; return ;;
        --compare) mapfile -t COMPREPLY < <(compgen -W 'time content' -- "$word"); return ;;
        --files-from) mapfile -t COMPREPLY < <(compgen -f -- "$word"); return ;;
        --stores) :; return ;;
        --manager) mapfile -t COMPREPLY < <(compgen -d -- "$word"); return ;;
        --clients) :; return ;;
        --stripe) :; return ;;
        --width) :; return ;;
        --copies) :; return ;;
        --options) :; return ;;
        --cache) :; return ;;
        --hint) mapfile -t COMPREPLY < <(compgen -W 'sequential random once normal' -- "$word"); return ;;
        --resp) :; return ;;
        --password-file) mapfile -t COMPREPLY < <(compgen -f -- "$word"); return ;;
        --tls-cert) mapfile -t COMPREPLY < <(compgen -f -- "$word"); return ;;
        --tls-key) mapfile -t COMPREPLY < <(compgen -f -- "$word"); return ;;
        --capacity) :; return ;;
        --variant) mapfile -t COMPREPLY < <(compgen -W 'n c cu s' -- "$word"); return ;;
        --transport) mapfile -t COMPREPLY < <(compgen -W 'links udp' -- "$word"); return ;;
        --on-duplicate) mapfile -t COMPREPLY < <(compgen -W 'error first last' -- "$word"); return ;;
        --parity) :; return ;;
        --wait-safe) :; return ;;
        --where) :; return ;;
        --first) :; return ;;
        --dir) mapfile -t COMPREPLY < <(compgen -d -- "$word"); return ;;
        --runs) :; return ;;
        --schedule) mapfile -t COMPREPLY < <(compgen -W 'together same shifted paced' -- "$word"); return ;;
        --may) mapfile -t COMPREPLY < <(compgen -W 'all status' -- "$word"); return ;;
        --listen) :; return ;;
        --via) :; return ;;
        --timeout) :; return ;;
        --dead-after) :; return ;;
        --env) :; return ;;
        --fanout) :; return ;;
        --progress) mapfile -t COMPREPLY < <(compgen -W 'auto always never' -- "$word"); return ;;
        --generate) mapfile -t COMPREPLY < <(compgen -W 'man complete-bash complete-zsh complete-fish' -- "$word"); return ;;
        --join) mapfile -t COMPREPLY < <(compgen -d -- "$word"); return ;;
        --size) :; return ;;
        --rows) :; return ;;
    esac
    local flags='' subjects=''
    case $command in
        gen) flags='--io --ascii --skewed --start --json --progress -q --quiet -h --help --all -V --version --generate' subjects='' ;;
        check) flags='--record --prefixed --header --by --datamation --io --summary --merge --cluster --identity --on --json --progress -q --quiet -h --help --all -V --version --generate' subjects='' ;;
        sort) flags='-o --output --record --prefixed --header --by --datamation --memory --scratch --scratch-limit --threads --unique --resume --no-proof --io --nodes --cluster --shares --identity --on --detach --json --progress -q --quiet -h --help --all -V --version --generate' subjects='' ;;
        shuffle) flags='-o --output --record --prefixed --header --memory --scratch --scratch-limit --threads --io --seed --nodes --cluster --shares --identity --on --detach --json --progress -q --quiet -h --help --all -V --version --generate' subjects='' ;;
        merge) flags='-o --output --record --prefixed --by --datamation --memory --threads --unique --io --nodes --cluster --shares --identity --on --detach --json --progress -q --quiet -h --help --all -V --version --generate' subjects='' ;;
        join) flags='-o --output --record --prefixed --by --datamation --memory --scratch --scratch-limit --threads --io --type --right-record --right-by --between --nodes --cluster --shares --identity --on --detach --json --progress -q --quiet -h --help --all -V --version --generate' subjects='' ;;
        plan) flags='-o --output --record --prefixed --header --by --datamation --memory --scratch --scratch-limit --threads --unique --resume --no-proof --io --cluster --shares --simulate --identity --on --json --progress -q --quiet -h --help --all -V --version --generate' subjects='sort' ;;
        partition) flags='-o --output --record --prefixed --by --datamation --memory --threads --io --pick --parts --split-keys --nodes --cluster --shares --identity --on --detach --json --progress -q --quiet -h --help --all -V --version --generate' subjects='' ;;
        pump) flags='--resume --io --streams --limit --identity --ssh --verify --no-disk --there --through-ssh --no-checksum --strict --exclude --include --filter --delete --max-delete --dry-run --compare --update --existing --no-xattrs --files-from --json --progress -q --quiet -h --help --all -V --version --generate' subjects='' ;;
        volume) flags='--record --limit --cluster --identity --stores --manager --clients --stripe --width --copies --recursive --force --json --progress -q --quiet -h --help --all -V --version --generate' subjects='create list status ls stat mkdir rm layout hint check repair add-store replace salvage manager destroy' ;;
        mount) flags='--background --read-only --options --cache --hint --json --progress -q --quiet -h --help --all -V --version --generate' subjects='' ;;
        table) flags='--record --by --datamation --memory --scratch --cluster --identity --resp --password-file --tls-cert --tls-key --capacity --index --variant --transport --on-duplicate --parity --wait-safe --hex --where --first --descending --keys-only --json --progress -q --quiet -h --help --all -V --version --generate' subjects='serve create list status drop put update get delete range count find load dump split merge move' ;;
        doctor) flags='--scratch --json --progress -q --quiet -h --help --all -V --version --generate' subjects='' ;;
        bench) flags='--dir --runs --json --progress -q --quiet -h --help --all -V --version --generate --size --rows' subjects='sort io incore pump river' ;;
        exec) flags='--identity --on --detach --via --timeout --env --gather --fanout --json --progress -q --quiet -h --help --all -V --version --generate' subjects='' ;;
        job) flags='--identity --on --json --progress -q --quiet -h --help --all -V --version --generate' subjects='list show watch cancel' ;;
        node) flags='--memory --identity --on --listen --via --json --progress -q --quiet -h --help --all -V --version --generate --join' subjects='run ping' ;;
        cluster) flags='--identity --on --ssh --runs --schedule --may --timeout --dead-after --json --progress -q --quiet -h --help --all -V --version --generate' subjects='init install up upgrade status doctor probe exchange add drop renew client mend down remove' ;;
        help) flags='--json --progress -q --quiet -h --help --all -V --version --generate' subjects='gen check sort shuffle merge join plan partition pump volume mount table doctor bench exec job node cluster help' ;;
        *) flags='--json --progress -q --quiet -h --help --all -V --version --generate' ;;
    esac
    if [[ $word == -?* ]]; then
        mapfile -t COMPREPLY < <(compgen -W "$flags" -- "$word")
    elif ((COMP_CWORD == 1)); then
        mapfile -t COMPREPLY < <(compgen -W 'gen check sort shuffle merge join plan partition pump volume mount table doctor bench exec job node cluster help' -- "$word")
    elif ((COMP_CWORD == 2)) && [[ -n $subjects ]]; then
        mapfile -t COMPREPLY < <(compgen -W "$subjects" -- "$word")
    else
        mapfile -t COMPREPLY < <(compgen -f -- "$word")
    fi
}
complete -o filenames -F _thalweg thalweg
