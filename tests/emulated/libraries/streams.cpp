// SPDX-License-Identifier: MIT
// libcudart: streams, events, copies and CUDA graphs. A stream is a thread with a queue.
#include "emulator.h"

#include <chrono>
#include <cstring>
#include <map>
#include <set>
#include <thread>

// ---------------------------------------------------------------- streams

static std::mutex streams_mutex;
static auto& streams = *new std::set<Stream*>;  // never destroyed, since their threads outlive main
static auto& default_streams = *new std::map<int, Stream*>;

Stream::Stream(int device, int priority) : device(device), priority(priority) {
  std::thread([this] { run(); }).detach();
}

void Stream::run() {
  current_device = device;
  for (;;) {
    Work work;
    {
      std::unique_lock<std::mutex> lock(mutex_);
      pushed_.wait(lock, [&] { return !queue_.empty(); });
      work = std::move(queue_.front());
      queue_.pop_front();
      busy_ = true;
    }
    pause_up_to(kernel_delay);
    work();
    work = nullptr;  // what it holds is freed before it counts as done
    std::lock_guard<std::mutex> lock(mutex_);
    busy_ = false;
    if (queue_.empty()) idle_.notify_all();
  }
}

void Stream::make(std::function<Work()> maker) {
  if (capture) {
    capture->makers.push_back(std::move(maker));
  } else {
    push(maker());
  }
}

void Stream::push(Work work) {
  if (capture) {
    make([work] { return work; });
    return;
  }
  std::lock_guard<std::mutex> lock(mutex_);
  queue_.push_back(std::move(work));
  pushed_.notify_one();
}

void Stream::drain() {
  std::unique_lock<std::mutex> lock(mutex_);
  idle_.wait(lock, [&] { return queue_.empty() && !busy_; });
}

bool Stream::is_idle() {
  std::lock_guard<std::mutex> lock(mutex_);
  return queue_.empty() && !busy_;
}

static Stream* new_stream(int priority) {
  auto* stream = new Stream(current_device, priority);
  streams.insert(stream);
  return stream;
}

Stream* stream_of(cudaStream_t handle) {
  bool is_default = handle == nullptr || handle == cudaStreamLegacy || handle == cudaStreamPerThread;
  if (!is_default) return reinterpret_cast<Stream*>(handle);
  std::lock_guard<std::mutex> lock(streams_mutex);
  Stream*& stream = default_streams[current_device];
  if (!stream) stream = new_stream(0);
  return stream;
}

std::vector<Stream*> all_streams() {
  std::lock_guard<std::mutex> lock(streams_mutex);
  return {streams.begin(), streams.end()};
}

EXPORTED cudaError_t cudaStreamCreateWithPriority(cudaStream_t* handle, unsigned, int priority) {
  std::lock_guard<std::mutex> lock(streams_mutex);
  *handle = reinterpret_cast<cudaStream_t>(new_stream(priority));
  return cudaSuccess;
}

EXPORTED cudaError_t cudaStreamCreateWithFlags(cudaStream_t* handle, unsigned flags) {
  return cudaStreamCreateWithPriority(handle, flags, 0);
}

EXPORTED cudaError_t cudaStreamCreate(cudaStream_t* handle) { return cudaStreamCreateWithPriority(handle, 0, 0); }
EXPORTED cudaError_t cudaStreamDestroy(cudaStream_t) { return cudaSuccess; }  // torch keeps its streams

EXPORTED cudaError_t cudaStreamGetPriority(cudaStream_t handle, int* priority) {
  *priority = stream_of(handle)->priority;
  return cudaSuccess;
}

EXPORTED cudaError_t emulated_drain(cudaStream_t handle) {
  Stream* stream = stream_of(handle);
  if (stream->capture) {
    stream->capture->invalid = true;
    return answer(cudaErrorStreamCaptureUnsupported);
  }
  stream->drain();
  return cudaSuccess;
}

EXPORTED cudaError_t cudaStreamSynchronize(cudaStream_t handle) {
  counters[STREAM_SYNCS]++;
  return emulated_drain(handle);
}

EXPORTED cudaError_t cudaStreamQuery(cudaStream_t handle) {
  return answer(stream_of(handle)->is_idle() ? cudaSuccess : cudaErrorNotReady);
}

EXPORTED cudaError_t cudaLaunchHostFunc(cudaStream_t handle, cudaHostFn_t function, void* data) {
  stream_of(handle)->push([=] { function(data); });
  return cudaSuccess;
}

EXPORTED cudaError_t cudaStreamAddCallback(cudaStream_t handle, cudaStreamCallback_t function, void* data, unsigned) {
  stream_of(handle)->push([=] { function(handle, cudaSuccess, data); });
  return cudaSuccess;
}

EXPORTED void emulated_launch(cudaStream_t handle, Work work, int counter) {
  counters[counter]++;
  stream_of(handle)->push(std::move(work));
}

// ---------------------------------------------------------------- events

// One recording of an event. An event that is recorded again gets another: who waits for the first goes on waiting.
struct Recording {
  std::mutex mutex;
  std::condition_variable reached;
  bool done = false;
  std::chrono::steady_clock::time_point time;
  Graph* capture = nullptr;  // of the stream that it was recorded on

  void reach() {
    std::lock_guard<std::mutex> lock(mutex);
    done = true;
    time = std::chrono::steady_clock::now();
    reached.notify_all();
  }

  void wait() {
    std::unique_lock<std::mutex> lock(mutex);
    reached.wait(lock, [&] { return done; });
  }

  bool is_done() {
    std::lock_guard<std::mutex> lock(mutex);
    return done;
  }
};

class Event {
 public:
  std::shared_ptr<Recording> record() {
    std::lock_guard<std::mutex> lock(mutex_);
    return latest_ = std::make_shared<Recording>();
  }

  std::shared_ptr<Recording> latest() {
    std::lock_guard<std::mutex> lock(mutex_);
    return latest_;
  }

 private:
  std::mutex mutex_;
  std::shared_ptr<Recording> latest_;  // null: never recorded, which counts as reached
};

static std::shared_ptr<Recording> latest_of(cudaEvent_t handle) { return reinterpret_cast<Event*>(handle)->latest(); }

EXPORTED cudaError_t cudaEventCreateWithFlags(cudaEvent_t* handle, unsigned) {
  *handle = reinterpret_cast<cudaEvent_t>(new Event);
  return cudaSuccess;
}

EXPORTED cudaError_t cudaEventCreate(cudaEvent_t* handle) { return cudaEventCreateWithFlags(handle, 0); }

EXPORTED cudaError_t cudaEventDestroy(cudaEvent_t handle) {
  delete reinterpret_cast<Event*>(handle);
  return cudaSuccess;
}

EXPORTED cudaError_t cudaEventRecord(cudaEvent_t handle, cudaStream_t on) {
  Stream* stream = stream_of(on);
  auto recording = reinterpret_cast<Event*>(handle)->record();
  recording->capture = stream->capture;
  if (!stream->capture) stream->push([recording] { recording->reach(); });
  return cudaSuccess;
}

EXPORTED cudaError_t cudaEventRecordWithFlags(cudaEvent_t handle, cudaStream_t on, unsigned) {
  return cudaEventRecord(handle, on);
}

EXPORTED cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t event, unsigned) {
  Stream* stream = stream_of(handle);
  auto recording = latest_of(event);
  if (!recording) return cudaSuccess;
  if (recording->capture) {  // this stream joins the graph; its order is that of the calls
    stream->capture = recording->capture;
    return cudaSuccess;
  }
  if (stream->capture) return answer(cudaErrorStreamCaptureIsolation);
  stream->push([recording] { recording->wait(); });
  return cudaSuccess;
}

EXPORTED cudaError_t cudaEventQuery(cudaEvent_t event) {
  auto recording = latest_of(event);
  if (!recording) return cudaSuccess;
  if (recording->capture) return answer(cudaErrorCapturedEvent);
  return answer(recording->is_done() ? cudaSuccess : cudaErrorNotReady);
}

EXPORTED cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  counters[EVENT_SYNCS]++;
  auto recording = latest_of(event);
  if (!recording) return cudaSuccess;
  if (recording->capture) return answer(cudaErrorCapturedEvent);
  recording->wait();
  return cudaSuccess;
}

EXPORTED cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t first, cudaEvent_t second) {
  auto start = latest_of(first), end = latest_of(second);
  *milliseconds = 0;
  if (start && end) *milliseconds = std::chrono::duration<float, std::milli>(end->time - start->time).count();
  return cudaSuccess;
}

// ---------------------------------------------------------------- copies

EXPORTED cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind, cudaStream_t handle) {
  if (bytes == 0) return cudaSuccess;
  MemoryKind target = memory_at(to).kind, source = memory_at(from).kind;
  Counter direction = target != ON_DEVICE ? DEVICE_TO_HOST : source != ON_DEVICE ? HOST_TO_DEVICE : DEVICE_TO_DEVICE;
  counters[direction]++;
  Stream* stream = stream_of(handle);
  if (source == NOT_OURS) {  // pageable: CUDA takes a copy before it returns
    auto first = static_cast<const char*>(from);
    auto copy = std::make_shared<std::vector<char>>(first, first + bytes);
    stream->push([=] { memcpy(to, copy->data(), bytes); });
    return cudaSuccess;
  }
  stream->push([=] { memcpy(to, from, bytes); });
  return target == NOT_OURS ? emulated_drain(handle) : cudaSuccess;
}

EXPORTED cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  cudaMemcpyAsync(to, from, bytes, kind, nullptr);
  return emulated_drain(nullptr);
}

EXPORTED cudaError_t cudaMemcpyPeerAsync(void* to, int, const void* from, int, size_t bytes, cudaStream_t handle) {
  return cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, handle);
}

EXPORTED cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t handle) {
  counters[MEMSETS]++;
  stream_of(handle)->push([=] { memset(to, value, bytes); });
  return cudaSuccess;
}

EXPORTED cudaError_t cudaMemset(void* to, int value, size_t bytes) {
  cudaMemsetAsync(to, value, bytes, nullptr);
  return emulated_drain(nullptr);
}

// ---------------------------------------------------------------- CUDA graphs

EXPORTED cudaError_t cudaStreamBeginCapture(cudaStream_t handle, cudaStreamCaptureMode) {
  static std::atomic<unsigned long long> ids{1};
  auto* graph = new Graph;
  graph->id = ids++;
  stream_of(handle)->capture = graph;
  return cudaSuccess;
}

EXPORTED cudaError_t cudaStreamEndCapture(cudaStream_t handle, cudaGraph_t* out) {
  Graph* graph = stream_of(handle)->capture;
  if (!graph) return answer(cudaErrorIllegalState);
  for (Stream* stream : all_streams()) {
    if (stream->capture == graph) stream->capture = nullptr;
  }
  *out = reinterpret_cast<cudaGraph_t>(graph);
  return answer(graph->invalid ? cudaErrorStreamCaptureInvalidated : cudaSuccess);
}

EXPORTED cudaError_t cudaStreamIsCapturing(cudaStream_t handle, cudaStreamCaptureStatus* status) {
  *status = stream_of(handle)->capture ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}

EXPORTED cudaError_t cudaStreamGetCaptureInfo(
    cudaStream_t handle, cudaStreamCaptureStatus* status, unsigned long long* id, cudaGraph_t* out,
    const cudaGraphNode_t** nodes, const cudaGraphEdgeData** edges, size_t* count) {
  Graph* graph = stream_of(handle)->capture;
  cudaStreamIsCapturing(handle, status);
  if (id) *id = graph ? graph->id : 0;
  if (out) *out = reinterpret_cast<cudaGraph_t>(graph);
  if (nodes) *nodes = nullptr;
  if (edges) *edges = nullptr;
  if (count) *count = 0;
  return cudaSuccess;
}

EXPORTED cudaError_t cudaGraphInstantiate(cudaGraphExec_t* out, cudaGraph_t graph, unsigned long long) {
  *out = reinterpret_cast<cudaGraphExec_t>(graph);
  return cudaSuccess;
}

EXPORTED cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* out, cudaGraph_t graph, unsigned long long flags) {
  return cudaGraphInstantiate(out, graph, flags);
}

EXPORTED cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t handle) {
  Stream* stream = stream_of(handle);
  for (auto& maker : reinterpret_cast<Graph*>(graph)->makers) stream->push(maker());
  return cudaSuccess;
}

EXPORTED cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t*, size_t* count) {
  *count = reinterpret_cast<Graph*>(graph)->makers.size();
  return cudaSuccess;
}

EXPORTED cudaError_t cudaGraphDestroy(cudaGraph_t) { return cudaSuccess; }  // the executable one is the same object
EXPORTED cudaError_t cudaGraphExecDestroy(cudaGraphExec_t) { return cudaSuccess; }

EXPORTED cudaError_t cudaUserObjectCreate(cudaUserObject_t* out, void*, cudaHostFn_t, unsigned, unsigned) {
  *out = reinterpret_cast<cudaUserObject_t>(1);
  return cudaSuccess;
}

EXPORTED cudaError_t cudaUserObjectRelease(cudaUserObject_t, unsigned) { return cudaSuccess; }

EXPORTED cudaError_t cudaGraphRetainUserObject(cudaGraph_t, cudaUserObject_t, unsigned, unsigned) {
  return cudaSuccess;
}
