"""vLLM's scheduler, which also writes down what it knows: the truth that the monitor's reading is held against.

It runs in the engine's interpreter: `--scheduler-cls tests.engine_truth.Witness`, with ENGINE_TRUTH naming a folder.
One line of JSON a step, in a file for each engine: tokens put out so far, blocks held, and the tokens and the blocks of
each running request.
"""

import json
import os
from pathlib import Path
from typing import Any

from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine import EngineCoreOutputs
from vllm.v1.outputs import ModelRunnerOutput


class Witness(Scheduler):
    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._put_out = 0
        folder = Path(os.environ["ENGINE_TRUTH"])
        self._lines = (folder / f"{self.parallel_config.data_parallel_index}.jsonl").open("w", buffering=1)

    def update_from_output(
        self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput
    ) -> dict[int, EngineCoreOutputs]:
        """What is sent to the API server after a step; the gauges on its page are those of this moment."""
        sent = super().update_from_output(scheduler_output, model_runner_output)
        self._put_out += sum(len(one.new_token_ids) for each in sent.values() for one in each.outputs)
        pool = self.kv_cache_manager.block_pool
        tokens = [request.num_computed_tokens for request in self.running]
        blocks = [len(self.kv_cache_manager.get_block_ids(request.request_id)[0]) for request in self.running]
        used = pool.num_gpu_blocks - 1 - pool.get_num_free_blocks()
        self._lines.write(f"{json.dumps([self._put_out, used, tokens, blocks])}\n")
        return sent
