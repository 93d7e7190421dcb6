"""Items of which nothing is promised: what the released code does is not what the paper says, and the cards say so."""

import golden
from golden import Case


@golden.cases("complex_order_cls")
def test_complex_order_classifier(case: Case):
    case.out_of_scope("its streams are doubled and swapped, and nothing is added to the input of a layer", "N")


@golden.cases("complex_order_lm")
def test_complex_order_language_model(case: Case):
    case.out_of_scope("its scores use one product twice, and positions begin anew in every segment", "schema")
