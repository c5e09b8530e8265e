"""ELF objects of eBPF programs, as clang writes them: read, relocated and linked to one program."""
