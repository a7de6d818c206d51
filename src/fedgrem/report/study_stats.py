"""The place where ``report.model_words`` looks for :func:`fedgrem.report.names.name_of`."""

from fedgrem.report.names import name_of as name_of
