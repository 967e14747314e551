// Causes as people call them: `cpu-contention` is "CPU contention".

const WORDS: Record<string, string> = { cpu: "CPU", gpu: "GPU", nccl: "NCCL", gil: "GIL", io: "I/O", oom: "OOM", pcie: "PCIe", numa: "NUMA", ipc: "IPC", kv: "KV" };

export function causeTitle(cause: string): string {
  const words = cause.split("-").map((word) => WORDS[word] ?? word).join(" ");
  return words.charAt(0).toUpperCase() + words.slice(1);
}
