"""What `make lab` wants of the server: a figure with sliders is saved without its widgets.

Opened again it shows its picture, and not an error.
"""

from d2lpar.command.course.saving import leave_out_widget_views

c.ContentsManager.pre_save_hook = leave_out_widget_views  # noqa: F821 (Jupyter gives `c`)
