"""A small DDP training that is hard to snapshot: every kind of state that a resume can get wrong.

Several ranks over gloo, AdamW, dropout (the RNG state), a shuffling DataLoader with persistent
worker processes (queues, shared memory, semaphores), with --board also a block of named shared
memory whose content goes into every loss. It knows nothing of snapshots. Each rank
writes one line a step: `rank step loss`, the loss as a hexadecimal float, so that two runs can be
compared bit by bit; the last line is a hash of the parameters. With --times the wall clock follows.

    torchrun --nproc-per-node 2 train_ddp.py --out FOLDER [--steps 300] [--width 512] [--workers 2]
"""

from __future__ import annotations

import argparse
import hashlib
import os
import time
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def parameters_hash(model: nn.Module) -> str:
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(parameter.detach().numpy().tobytes())
    return digest.hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--sleep", type=float, default=0.0, help="seconds between steps")
    parser.add_argument("--slow-while", type=Path, help="a file: 0.2 s between steps while it exists")
    parser.add_argument("--board", action="store_true", help="keep a number in named shared memory")
    parser.add_argument("--times", action="store_true", help="write the time of each step too")
    args = parser.parse_args()

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(1000 + rank)
    width = args.width
    model = DistributedDataParallel(
        nn.Sequential(
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Dropout(0.2),
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Linear(width, 10),
        )
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    generator = torch.Generator().manual_seed(0)
    data = TensorDataset(
        torch.randn(2048, width, generator=generator), torch.randint(0, 10, (2048,), generator=generator)
    )
    sampler: DistributedSampler[tuple[torch.Tensor, ...]] = DistributedSampler(data, shuffle=True, seed=7)
    loader = DataLoader(
        data, batch_size=32, sampler=sampler, num_workers=args.workers, persistent_workers=args.workers > 0
    )

    args.out.mkdir(parents=True, exist_ok=True)
    # A block of /dev/shm with a name: what a job of several programs would share.
    board = SharedMemory(create=True, size=1 << 16) if args.board else None
    scale = torch.frombuffer(board.buf if board else bytearray(8), dtype=torch.float64, count=1)
    scale[0] = 1.0
    with Path(args.out / f"losses.{rank}").open("a", buffering=1) as out:
        step = epoch = 0
        while step < args.steps:
            sampler.set_epoch(epoch)
            epoch += 1
            for inputs, labels in loader:
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(model(inputs), labels) * scale[0]
                loss.backward()
                optimizer.step()
                step += 1
                scale[0] = 1.0 + step / 1e6
                when = f" {time.time():.6f}" if args.times else ""
                out.write(f"{rank} {step} {loss.item().hex()}{when}\n")
                slow = args.slow_while is not None and args.slow_while.exists()
                if args.sleep or slow:
                    time.sleep(0.2 if slow else args.sleep)
                if step == args.steps:
                    break
        out.write(f"{rank} final {parameters_hash(model)}\n")
    dist.destroy_process_group()
    del scale
    if board is not None:
        board.close()
        board.unlink()


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
