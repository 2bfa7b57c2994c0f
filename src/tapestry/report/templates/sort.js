// Sorts tables by a click on a heading.
"use strict";
(() => {
  // Sorting: numbers from large to small first, names from a to z.
  const key = (row, column) => {
    const raw = row.cells[column].dataset.sort.replace(/^(-?)inf$/, "$1Infinity");
    const number = Number(raw);
    return raw === "" ? -Infinity : raw === "nan" ? Infinity : Number.isNaN(number) ? raw : number;
  };
  document.querySelectorAll("table.sortable").forEach((table) => {
    const heads = [...table.tHead.rows[0].cells], body = table.tBodies[0];
    heads.forEach((head, column) => head.querySelector("button").addEventListener("click", () => {
      const first = column === 0 ? "ascending" : "descending";
      const order = head.getAttribute("aria-sort") !== first ? first : first === "ascending" ? "descending" : "ascending";
      heads.forEach((other) => other.setAttribute("aria-sort", "none"));
      head.setAttribute("aria-sort", order);
      const sign = order === "ascending" ? 1 : -1;
      const rows = [...body.rows].filter((row) => row.cells.length === heads.length);
      rows.sort((a, b) => { const x = key(a, column), y = key(b, column); return sign * (x < y ? -1 : x > y ? 1 : 0); });
      body.append(...rows);
    }));
  });
})();
