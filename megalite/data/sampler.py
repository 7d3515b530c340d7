"""Which samples a rank reads in one step: a function of the samples consumed, so a resumed run goes on where it was."""


def micro_batch_samples(
    consumed_samples: int, *, micro_batch_size: int, num_micro_batches: int, dp_rank: int, dp_size: int
) -> list[range]:
    """The samples of each micro-batch of one rank; less `consumed_samples`, they are places in the global batch.

    Each block of micro_batch_size x dp_size samples is dealt to the ranks in order, a micro-batch each. So a global
    batch holds the same samples in every layout, whatever ranks and micro-batches it is cut into.
    """
    block = micro_batch_size * dp_size
    first = consumed_samples + dp_rank * micro_batch_size
    starts = range(first, first + num_micro_batches * block, block)
    return [range(start, start + micro_batch_size) for start in starts]
