"""The request that the OpenAPI document shows and the warm-up predicts: a real, small graph."""

from __future__ import annotations

from typing import Any

import orjson

# `peakcast capture examples/small_network.py:workload --plans eager`, with torch 2.13.0.
_GRAPH = (
    '{"schema":1,"ops":["aten.t.default","aten.addmm.default","aten.relu.default","aten.detach.default","aten._log_so'
    'ftmax.default","aten.nll_loss_forward.default","aten.ones_like.default","aten.nll_loss_backward.default","aten._'
    'log_softmax_backward_data.default","aten.mm.default","aten.sum.dim_IntList","aten.view.default","aten.threshold_'
    'backward.default","profiler._record_function_enter_new.default","aten._foreach_add_.List","profiler._record_func'
    'tion_exit._RecordFunction"],"dtypes":["float32","none"],"captured_with":{"traced_on":"cuda-shim","torch":"2.13.0'
    '+cpu","task":"training","optimizer":"SGD","implementation":"foreach"},"lines":["small_network.py:17"],"traces":{'
    '"eager":{"phase":[0,0,0,0,0,0,1,1,1,1,2,2,2,2,2,2,2,2,2,2,2,2,2,2,2,2,2,2,2,2,2,2,2,1,3,1,1,1],"op":[0,1,2,3,0,1'
    ',4,3,5,6,7,3,8,0,9,0,9,0,10,11,3,0,3,3,12,0,9,0,10,11,3,0,3,13,14,15,13,15],"rank":[2,2,2,2,2,2,2,2,0,0,2,2,2,2,'
    '2,2,2,2,2,1,1,2,2,2,2,2,2,2,2,1,1,2,2,0,2,0,0,0],"numel":[16384,8192,8192,8192,2560,320,320,320,1,1,320,320,320,'
    '2560,8192,320,2560,2560,10,10,10,2560,2560,8192,8192,8192,16384,16384,256,256,256,16384,16384,1,16384,1,1,1],"dt'
    'ype":[0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,1,0,1,1,1],"device":[1,1,1,1,1,1,1,1,1,1'
    ',1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,0,1,0,0,0],"inputs":{"offsets":[0,1,4,5,6,7,10,11,12,14,15,19,20,'
    '22,23,25,26,28,29,30,31,32,33,34,35,37,38,40,41,42,43,44,45,46,46,54,54,54,54],"ids":[0,1,4,0,6,7,2,3,7,2,8,9,9,'
    '5,10,12,9,5,11,9,13,9,2,14,2,14,14,7,16,14,17,17,16,16,7,15,7,18,18,4,19,18,20,20,19,19,0,1,2,3,19,20,16,17]},"o'
    'utputs":{"offsets":[0,1,2,3,4,5,6,7,8,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31,32,33,34'
    ',34,38,38,38,38],"ids":[0,6,7,7,2,8,9,9,10,11,12,13,9,14,2,15,14,16,16,17,17,17,16,16,7,18,18,19,19,20,20,20,19,'
    '19,0,1,2,3]},"storages":{"bytes":[65536,1024,10240,40,8192,256,32768,32768,1280,1280,4,4,4,1280,1280,32768,10240'
    ',40,32768,65536,1024],"device":[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1],"role":[0,0,0,0,2,1,6,5,6,5,6,5,5,6,6'
    ',6,3,3,6,3,3],"born":[-1,-1,-1,-1,-1,-1,1,2,5,6,8,8,9,10,12,14,16,18,24,26,28],"died":[-1,-1,-1,-1,-1,-1,3,24,8,'
    '12,37,10,32,12,19,24,36,36,29,36,36]},"line":[-1,-1,-1,-1,-1,-1,0,0,0,-1,-1,-1,-1,-1,-1,-1,-1,-1,-1,-1,-1,-1,-1,'
    "-1,-1,-1,-1,-1,-1,-1,-1,-1,-1,-1,-1,-1,-1,-1]}}}"
)


def example_request() -> dict[str, Any]:
    """Return the body of a `POST /predict` that is answered."""
    return {
        "graph": orjson.loads(_GRAPH),
        "device": {"name": "NVIDIA H200", "total_bytes": 150_754_820_096},
        "plans": ["eager", "inductor"],
        "risk": 0.01,
    }
