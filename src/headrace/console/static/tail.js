// Follow new records, the newest at the top.
const MOST = 200;

export function tail(stream) {
  const button = document.getElementById("tail");
  const rows = document.getElementById("rows");
  if (!button || !rows) return;
  button.hidden = false;
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
      for (const row of fresh) row.classList.add("new");
      rows.prepend(...fresh);
      while (rows.children.length > MOST) rows.lastElementChild.remove();
    });
  });
}
