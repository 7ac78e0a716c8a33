"""What stands out in a report."""

from steelyard.insight.findings import findings
from steelyard.insight.results import Attribution, LayerAttribution


def texts(report) -> list[tuple[str, str]]:
    return [(finding.layer, finding.text) for finding in findings(report)]


def test_nothing_stands_out_among_equals(row, report_of):
    assert texts(report_of(*(row(f"layers.{number}", 0.1 + 0.01 * number) for number in range(5)))) == []


def test_nothing_is_said_of_what_was_not_measured(row, report_of):
    assert texts(report_of(row("a", None), row("b", None))) == []


def test_the_worst_errors_come_first_and_are_at_most_three(row, report_of):
    errors = [0.1] * 8 + [0.3, 0.6, 0.4, 0.5]
    found = texts(report_of(*(row(f"layers.{number}", error) for number, error in enumerate(errors))))
    assert found == [
        ("layers.9", "error 60.0%, 6.0 times the median of fprop"),
        ("layers.11", "error 50.0%, 5.0 times the median of fprop"),
        ("layers.10", "error 40.0%, 4.0 times the median of fprop"),
    ]


def test_layers_that_cause_the_error_of_the_model_are_named(row, report_of):
    report = report_of(*(row(f"layers.{number}", 0.1) for number in range(4)))
    causes = [
        LayerAttribution(f"layers.{number}", error, 0.1, None) for number, error in enumerate((0.1, 0.2, 0.8, 0.1))
    ]
    report.attribution = Attribution("mxfp8", 1, causes, 1.0, None)
    assert texts(report) == [("layers.2", "alone causes an error of 80% of that of the whole model")]


def test_values_that_do_not_fit_are_named_with_their_operand(row, report_of):
    report = report_of(row("a", 0.1, saturated=0.02), row("b", 0.1, flushed=0.5), row("c", 0.1, nans=3))
    assert texts(report) == [
        ("c", "3 NaN and 0 infinite values in the input"),
        ("a", "2.0% of the values of the input saturate"),
        ("b", "50.0% of the values of the input become zero"),
    ]


def test_shares_that_are_the_same_everywhere_are_named_if_they_are_large(row, report_of):
    def everywhere(share: float) -> list:
        return texts(report_of(*(row(f"layers.{number}", 0.1, saturated=share) for number in range(5))))

    # The scales of NVFP4 are rounded, so that a few values of each block saturate.
    assert everywhere(0.04) == []
    assert len(everywhere(0.4)) == 3


def test_reasons_for_high_precision_are_weighed_by_flops(row, report_of):
    report = report_of(
        row("a", 0.1), row("head", None, reason="override 'head'"), row("b", None, reason="no parameter")
    )
    report.rows[1].flops = 3 * 8192
    report.shares.flops = 5 * 8192
    assert texts(report) == [
        ("", "60.0% of the FLOPs in high precision: override 'head'"),
        ("", "20.0% of the FLOPs in high precision: no parameter"),
    ]
