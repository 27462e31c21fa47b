// Show times in the zone of the browser. Without scripts they are in UTC.
const clock = new Intl.DateTimeFormat("en-GB", { timeStyle: "medium" });
const day = new Intl.DateTimeFormat("sv-SE", { dateStyle: "short" });

function show(main) {
  const today = day.format(new Date());
  for (const element of main.querySelectorAll("time[datetime]")) {
    const given = element.dateTime;
    const key = `${given} ${today}`;
    if (element.dataset.shown === key) continue;
    element.dataset.shown = key;
    const moment = new Date(given);
    const date = given && day.format(moment);
    element.textContent = given ? (date === today ? "" : `${date} `) + clock.format(moment) : "";
  }
  const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
  for (const element of main.querySelectorAll(".zone")) element.textContent = zone;
}

export function times(main) {
  show(main);
  for (const change of ["cells", "fresh"]) main.addEventListener(change, () => show(main));
}
