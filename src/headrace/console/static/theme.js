// The theme that somebody chose goes over the system's; set before the page is painted.
const chosen = localStorage.getItem("headrace-theme");
if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
