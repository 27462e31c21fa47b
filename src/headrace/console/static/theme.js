// A chosen theme overrides that of the system. Set it before the page is painted.
const chosen = localStorage.getItem("headrace-theme");
if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
