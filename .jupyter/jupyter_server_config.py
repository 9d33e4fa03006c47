"""What `make lab` wants of the server: a figure with sliders is saved without its widgets.

Opened again it shows its picture, and not an error. Pictures and sliders have names for screen
readers, in JupyterLab and in the pages that it exports.
"""

import warnings
from pathlib import Path

from d2lpar.command.course.saving import leave_out_widget_views

HERE = Path(__file__).parent

# The server sets its hooks twice, and warns of the second time.
warnings.filterwarnings("ignore", message="Overriding existing pre_save_hook")

c.ContentsManager.pre_save_hook = leave_out_widget_views  # noqa: F821 (Jupyter gives `c`)
c.LabApp.extra_labextensions_path = [str(HERE / "labextensions")]  # noqa: F821
c.TemplateExporter.extra_template_basedirs = [str(HERE / "templates")]  # noqa: F821
c.HTMLExporter.template_name = "d2lpar"  # noqa: F821
for exporter, own in {"SlidesExporter": "reveal", "WebPDFExporter": "webpdf"}.items():
    c[exporter].template_name = own  # noqa: F821 (both are HTMLExporters, too)
