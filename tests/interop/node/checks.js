// How a check reports: one line with its outcome, its name and the reason, with tabs between them.

async function check(name, body) {
  try {
    await body();
    console.log(`ok\t${name}\t`);
  } catch (error) {
    const causes = [error, ...(error.errors ?? [])].map((cause) => cause.message);
    console.log(`FAIL\t${name}\t${causes.join("; ").replace(/\s+/g, " ")}`);
  }
}

function skip(name, reason) {
  console.log(`skip\t${name}\t${reason}`);
}

async function waitUntil(what, holds) {
  const deadline = Date.now() + 10_000;
  while (!(await holds())) {
    if (Date.now() > deadline) throw new Error(`not within 10 s: ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}

function newName(prefix) {
  return `${prefix}-${Math.random().toString(36).slice(2)}`;
}

module.exports = { check, skip, waitUntil, newName };
