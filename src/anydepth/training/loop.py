"""Training, from raw text to a run folder: `train` reads from top to bottom."""

import math
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from itertools import product
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from anydepth.config import Config
from anydepth.depth import Latent
from anydepth.encoder_models import Model
from anydepth.tasks.classification import with_labels
from anydepth.training import checkpoint
from anydepth.training.advice import (
    advice_if_memory_ends,
    note_what_has_no_effect,
    warn_of_busy_machine,
    warn_of_warmup,
)
from anydepth.training.data import TrainingData, prepare, take_weights
from anydepth.training.distributed import Ranks, agree, first_does, join, leave, share_weights
from anydepth.training.folder import no_run_if_refused, opened_run
from anydepth.training.gradients import LayerNorms, read_norms
from anydepth.training.journal import Journal
from anydepth.training.optim import Optimizers, learning_rate
from anydepth.training.step import Step, mixed
from anydepth.training.validation import validate
from anydepth.training.window import Progress, Window


def train(config: Config, out: Path, resume: bool = False, quiet: bool = False) -> Path:
    """Trains what the configuration describes into the folder `out`."""
    ranks, config = join(config.training.device), with_labels(config)
    with ExitStack() as held:
        first_does(ranks, lambda: held.enter_context(opened_run(config, out, resume)))
        train_model(config, out, ranks, resume, quiet)
    leave()
    return out


def train_model(config: Config, out: Path, ranks: Ranks, resume: bool, quiet: bool) -> None:
    """All of it, in a folder that is there and is ours."""
    settings = config.training
    with no_run_if_refused(out, new=ranks.first and not resume):
        data = prepare(config, out, ranks, quiet)
        torch.manual_seed(mixed(config.seed, 0))
        model = data.build_model(config).to(ranks.device)
        if settings.start_from and not checkpoint.steps(out / "checkpoints"):
            take_weights(model, settings.start_from)
    share_weights(model, ranks)
    optimizers = Optimizers(model, settings.optimizer, settings.depth_optimizer)
    with Journal(out, settings, quiet, ranks.first) as journal:
        run = Training(config, out, ranks, data, model, optimizers, journal)
        if resume:
            run.restore()
        warn_of_warmup(settings, journal)
        warn_of_busy_machine(ranks.device, journal)
        note_what_has_no_effect(config, optimizers, journal)
        predictions = data.task.predictions(data.batches)
        step_once = Step(model, optimizers, settings, config.seed, ranks, predictions)
        clock = time.monotonic() - run.progress.seconds
        stopping = False
        with stop_politely() as stop, data.stream() as batches, advice_if_memory_ends(data.batching.tokens, settings):
            while not run.enough():
                run.window.add(step_once(run.progress.step + 1, [next(batches) for _ in range(settings.accumulate)]))
                run.progress.step += 1
                if ranks.world == 1 or run.due(settings.log_every):  # agreeing makes a GPU wait
                    run.progress.seconds = agree(time.monotonic() - clock, ranks)
                    stopping = bool(agree(stop.asked, ranks))
                run.log(step_once.layer_norms)
                if run.due(settings.validate_every):
                    run.compare()
                if run.due(settings.save_every) or stopping:
                    run.save()
                if stopping:
                    journal.say(f"stopped after step {run.progress.step}")
                    raise KeyboardInterrupt
        run.finish()


@dataclass
class Training:
    """The parts of one training, and what is done with them between steps."""

    config: Config
    out: Path
    ranks: Ranks
    data: TrainingData
    model: Model
    optimizers: Optimizers
    journal: Journal
    progress: Progress = field(default_factory=Progress)

    def __post_init__(self) -> None:
        self.settings = self.config.training
        self.notes = {"tokenizer": self.data.tokenizers.hash}
        guesses = max(1000, self.model.output.num_embeddings)  # a few labels: one batch may be all wrong
        self.window = Window(explosion=4 * math.log(guesses))
        self.checkpoints = self.out / "checkpoints"
        self.saved_step = self.finished_step = 0
        for depth, store in product(self.settings.validate_depths, self.data.dev):
            self.model.plan(depth, store.key)  # better refused now than at the first validation

    def enough(self) -> bool:
        """Out of steps, of time or of patience."""
        progress, settings = self.progress, self.settings
        too_late = 0 < settings.seconds <= progress.seconds
        return progress.step >= settings.steps or too_late or 0 < settings.patience <= progress.without_gain

    def due(self, every: int) -> bool:
        return every > 0 and self.progress.step % every == 0

    def log(self, layer_norms: LayerNorms) -> None:
        self.journal.advance(self.progress.step)
        last = self.due(self.settings.log_every)
        if last or self.ranks.device.type == "cpu":  # on a GPU every look at a number makes it wait
            self.window.check(self.progress.step, self.out)
        if last:
            line = self.window.close(self.progress)
            line["epoch"] = self.data.epoch
            line["learning_rate"] = learning_rate(self.settings.optimizer, self.progress.step, self.settings.steps)
            self.journal.write(line)
        for stack, norms in layer_norms.items():
            line = {"step": self.progress.step, "kind": "gradients", "stack": stack, "norms": read_norms(norms)}
            self.journal.write(line)

    def restore(self) -> None:
        """Goes back to the newest whole checkpoint, or to the very start if there is none yet."""
        found = checkpoint.newest(self.checkpoints)
        if found is None:
            if damaged := checkpoint.steps(self.checkpoints):
                self.journal.say(f"warning: no checkpoint is whole (of {len(damaged)}): the training begins again")
                if self.settings.start_from:  # not read before: it need not be there to go on from a checkpoint
                    take_weights(self.model, self.settings.start_from)
            return self.journal.rewind(0, 0)
        # of a finished run, what came after its last checkpoint counts as well: it may have been the best
        end = checkpoint.finished(self.checkpoints, found.step)
        if agree(end is not None, self.ranks):
            self.finished_step = found.step
        if end != {}:  # as marks of an earlier version are, which do not say how long the journal was
            self.journal.rewind((end or found.state)["metrics"], found.step)
        checkpoint.load_weights(self.model, found.tensors["model"])
        self.optimizers.restore(found.tensors["optimizer"])
        self.data.seek(found.state["position"])
        self.progress, self.saved_step = Progress(**(end or found.state)["progress"]), found.step
        if self.progress.judged_by not in ("", self.settings.best):
            self.progress.best, self.progress.without_gain = math.inf, 0
        self.window.begin(self.progress)
        if found.state["machine"] != machine():
            self.journal.say(f"warning: saved with {found.state['machine']}, resumed with {machine()}: bits may differ")
        self.journal.say(f"resumed after step {found.step}")

    def save(self) -> None:
        """A checkpoint, unless the weights are spoilt."""
        self.window.check(self.progress.step, self.out)
        self.progress.tokens = int(self.window.tokens)
        first_does(self.ranks, self.write_checkpoint)
        self.saved_step = self.progress.step

    def write_checkpoint(self) -> None:
        tensors = {
            "model": checkpoint.weights(self.model),
            "optimizer": self.optimizers.tensors(),
        }
        state = {
            "progress": asdict(self.progress),
            "position": self.data.position,
            "metrics": self.journal.length,
            "machine": machine(),
        }
        keep, every = self.settings.keep, self.settings.save_every
        checkpoint.save(self.checkpoints, self.progress.step, tensors, state, keep, self.notes, every)

    def judge(self, kind: str) -> float:
        """The mean loss over dev sets and validated depths, or minus the mean score; infinite without a dev set."""
        found = math.inf
        if self.data.dev and self.ranks.first:
            lines = validate(self.config, self.model, self.data, self.ranks.device)
            for line in lines:
                self.journal.write({"step": self.progress.step, "kind": kind, "seconds": self.progress.seconds} | line)
            score = self.data.task.score if self.settings.best == "score" else None
            found = sum(-line[score] if score else line["loss"] for line in lines) / len(lines)
        return agree(found, self.ranks)

    def compare(self) -> None:
        """Validates, and keeps the weights if they are the best so far."""
        self.note_logits()
        if not self.data.dev:
            return
        found, progress = self.judge("valid"), self.progress
        progress.judged_by = self.settings.best
        if found < progress.best:
            progress.best, progress.best_step, progress.without_gain = found, progress.step, 0
            self.release()
        else:
            progress.without_gain += 1

    def note_logits(self) -> None:
        """Which layers latent depth chooses by now, for each of its rows."""
        for name, policy in self.model.policies.items():
            if isinstance(policy, Latent):
                logits = dict(zip(policy.keys or ("",), (row.tolist() for row in policy.logits)))
                self.journal.write({"step": self.progress.step, "kind": "logits", "stack": name, "logits": logits})

    def release(self) -> None:
        """These weights are the model until better ones come."""
        weights, path = checkpoint.weights(self.model), self.out / "model.safetensors"
        first_does(self.ranks, lambda: checkpoint.write_weights(weights, path, self.notes))

    def finish(self) -> None:
        """The last checkpoint and validation; then the mean of the last checkpoints, if it is better than the best.

        The mark that a run is finished comes last: a resume after a kill in here does all of this again.
        """
        step = self.progress.step
        if self.finished_step == step:
            return self.journal.say(f"{self.out} is finished after {step} steps; nothing to do")
        if self.saved_step != step:
            self.save()
        if not self.due(self.settings.validate_every):
            self.compare()
        self.try_average()
        end = {"progress": asdict(self.progress), "metrics": self.journal.length}
        first_does(self.ranks, lambda: checkpoint.mark_finished(self.checkpoints, step, end))

    def try_average(self) -> None:
        """The mean of the last checkpoints becomes the model if it is better than the best; the last if there is no
        dev set to tell."""
        keep, every = self.settings.keep, self.settings.save_every
        first_does(self.ranks, lambda: checkpoint.prune(self.checkpoints, keep, every))
        last = checkpoint.steps(self.checkpoints)[-self.settings.average :]
        last = [path for path in last if checkpoint.is_whole(path)]
        if len(last) > 1:
            checkpoint.load_weights(self.model, checkpoint.average(last))
            if (found := self.judge("average")) < self.progress.best or not self.data.dev:
                self.progress.best, self.progress.best_step = found, self.progress.step
                self.release()
                self.journal.say(f"the mean of the last {len(last)} checkpoints is the model: {abs(found):.3f}")
        elif not self.data.dev:
            self.release()


def machine() -> dict[str, Any]:
    """What bit-identical results depend on besides weights and data."""
    return {
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
    }


@dataclass
class Stop:
    asked: bool = False


@contextmanager
def stop_politely() -> Iterator[Stop]:
    """Ctrl-C and SIGTERM let the step end and a checkpoint be written; a second Ctrl-C does not wait."""
    stop = Stop()
    if threading.current_thread() is not threading.main_thread():  # signals are the main thread's alone
        yield stop
        return

    def ask(number: int, frame: FrameType | None) -> None:
        if stop.asked:
            raise KeyboardInterrupt
        stop.asked = True

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
