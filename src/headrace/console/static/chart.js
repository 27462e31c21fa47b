// Show the values of a chart under the pointer. The server draws the lines.
function ago(seconds) {
  if (!seconds) return "now";
  if (seconds < 60) return `${seconds} s ago`;
  if (seconds < 3600) return seconds % 60 ? `${Math.floor(seconds / 60)} min ${seconds % 60} s ago` : `${seconds / 60} min ago`;
  return `${Math.floor(seconds / 3600)} h ${Math.floor(seconds % 3600 / 60)} min ago`;
}

function told(value, unit) {
  const number = value >= 100 ? Math.round(value).toLocaleString("en") : String(Math.round(value * 10) / 10);
  return `${number} ${unit}`;
}

export function charts(main) {
  for (const figure of main.querySelectorAll(".chart")) {
    const plot = figure.querySelector(".plot");
    const hair = document.createElement("span");
    const tip = document.createElement("span");
    hair.className = "hair";
    tip.className = "tip";
    hair.hidden = tip.hidden = true;
    plot.append(hair, tip);
    plot.addEventListener("pointermove", (event) => {
      const box = plot.getBoundingClientRect();
      const at = Math.min(1, Math.max(0, (event.clientX - box.left) / box.width));
      const back = Math.round((1 - at) * (Number(figure.dataset.count) - 1));
      const lines = [...plot.querySelectorAll("[data-series]")].map((each) => {
        const values = each.dataset.values.split(",");
        const text = values[values.length - 1 - back];
        return text ? `${each.dataset.series} ${told(Number(text), figure.dataset.unit)}` : "";
      }).filter(Boolean);
      hair.hidden = tip.hidden = lines.length === 0;
      if (!lines.length) return;
      const when = ago(back * Number(figure.dataset.step));
      hair.style.left = `${at * 100}%`;
      tip.style.left = `${at * 100}%`;
      tip.classList.toggle("before", at > 0.6);
      tip.textContent = `${when}: ${lines.join(", ")}`;
    });
    plot.addEventListener("pointerleave", () => { hair.hidden = tip.hidden = true; });
  }
  if (!main.dataset.charts) {
    main.dataset.charts = "yes";
    main.addEventListener("fresh", () => charts(main));
  }
}
