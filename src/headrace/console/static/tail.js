// Follow new records, the newest at the top.
const MOST = 200;
const MOST_NEW = 5;

export function tail(stream) {
  const button = document.getElementById("tail");
  const rows = document.getElementById("rows");
  if (!button || !rows) return;
  button.hidden = false;
  rows.addEventListener("animationend", (event) => event.target.closest("tr")?.classList.remove("new"));
  button.addEventListener("click", () => {
    const on = button.getAttribute("aria-pressed") !== "true";
    button.setAttribute("aria-pressed", String(on));
    button.textContent = on ? "Stop" : "Follow live";
    if (!on) {
      stream.follow("", null);
      return;
    }
    const query = `${location.search ? "&" : "?"}tail=${button.dataset.following}`;
    stream.follow(query, (told) => {
      const template = document.createElement("template");
      template.innerHTML = `<table><tbody>${told.html}</tbody></table>`;
      const fresh = [...template.content.querySelectorAll("tr")].reverse();
      // In a fast topic every row would be highlighted all the time.
      if (fresh.length <= MOST_NEW) for (const row of fresh) row.classList.add("new");
      rows.prepend(...fresh);
      while (rows.children.length > MOST) rows.lastElementChild.remove();
    });
  });
}
