"""The engine whose events come from a trace: programs run over what was recorded, as they would have run then.

    recording   what a trace has for programs: its workers, where epochs ended, what was lost, and in whose rows
    events      its events by epoch, in columns, each worker's in order
    replay      the programs: attached where the recording begins, closed where its epochs ended
    output      the trace that they write

Maps, emissions and counters are those of a live run wherever the recording has every event: the same executions are
given the same events, cuts and budgets, and the same code tells of what they hold.
"""
