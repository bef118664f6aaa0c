"""Losses of a mixture of experts, weighed by how well each has predicted the text so far (DEMix, arXiv 2108.05036).

The probability of a document's t-th predicted token is sum_j w_j(t) p_j(x_t), p_j being what the model says with the
expert of domain j, and w_j(t) the posterior of the domain: the prior times the product of p_j(x_s) over the predictions
s < t of the document. The prior is the same for all domains at the beginning of each document. A document so is a
sequence of one domain that nobody has named. The paper has causal models; of masked words, those to the left count as
known once they are predicted, and the unmasked words of the document are known to all experts alike.
"""

import numpy as np


def mixture_losses(losses: np.ndarray) -> np.ndarray:
    """The loss of each document with the mixture of all experts [nats], float64 [documents].

    The product over t of the sums above is sum_j prior_j prod_t p_j(x_t), since what a weight is divided by is the sum
    before it.

    Args:
        losses: with each expert by itself, summed over the predictions of a document, [experts, documents].
    """
    found: np.ndarray = np.log(len(losses)) - np.logaddexp.reduce(-losses.astype(np.float64), axis=0)
    return found
