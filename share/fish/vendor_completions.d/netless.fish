# fish completion for netless

set -l commands run doctor wrapper
set -l before "not __fish_seen_subcommand_from $commands"
set -l isolating "__fish_seen_subcommand_from $commands"

complete -c netless -f
complete -c netless -n $before -l version -d 'Show the version'
complete -c netless -l help -d 'Show help'
complete -c netless -n $before -a run -d 'Run a program without network'
complete -c netless -n $before -a doctor -d 'Does isolation work here, and if not, why'
complete -c netless -n $before -a wrapper -d 'Print the external command that does the same'
complete -c netless -n $isolating -l loopback -d 'A private 127.0.0.1 and ::1, both up'
complete -c netless -n $isolating -l private -d 'A network namespace of its own'
complete -c netless -n $isolating -l no-unix-sockets -d 'Refuse AF_UNIX sockets that lead outside as well'
complete -c netless -n $isolating -l map-root -d 'Be uid 0 inside'
complete -c netless -n $isolating -l mechanism -x -a 'auto namespace seatbelt wrapper filter' -d 'How to isolate'
complete -c netless -n $isolating -l fallback -x -a filter -d 'Use seccomp alone where namespaces are refused'
complete -c netless -n '__fish_seen_subcommand_from doctor' -l json -d 'For machines'
complete -c netless -n '__fish_seen_subcommand_from wrapper' -l external -d 'unshare or sandbox-exec, even where netless-exec is installed'
complete -c netless -n '__fish_seen_subcommand_from run wrapper' -x -a '(__fish_complete_subcommand --fcs-skip=2)'
