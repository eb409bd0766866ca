// SPDX-License-Identifier: MIT
// What the emulated CUDA runtime, the emulated NCCL and the operators share.
//
// A "device" is a number. Its memory is host memory, and each of its streams is a thread that runs what was queued, in
// order and after a random delay. So work overlaps as it does on a GPU, and whoever reads too early reads old bytes.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

// The names of libcudart and libnccl: LD_PRELOAD puts these before the real ones.
#define EXPORTED extern "C" __attribute__((visibility("default")))

using Work = std::function<void()>;

// ---------------------------------------------------------------- settings and counters

int setting(const char* name, int otherwise);  // an environment variable
void pause_up_to(int microseconds);            // sleeps for a random time

// From the environment at first, and from tests while they run.
extern std::atomic<int> kernel_delay;   // EMULATED_KERNEL_DELAY_US, before each kernel
extern std::atomic<int> nccl_delay;     // EMULATED_NCCL_DELAY_US, before and after each launch
extern std::atomic<int> nccl_patience;  // EMULATED_NCCL_HANG_S, seconds that a launch waits for other ranks
EXPORTED void emulated_set(int new_kernel_delay, int new_nccl_delay, int new_nccl_patience);
[[noreturn]] void fail(int exit_code, const std::string& message);

enum Counter {
  KERNELS,
  HOST_TO_DEVICE,
  DEVICE_TO_HOST,
  DEVICE_TO_DEVICE,
  MEMSETS,
  STREAM_SYNCS,
  EVENT_SYNCS,
  DEVICE_SYNCS,
  NCCL_LAUNCHES,    // a group of operations is one launch
  NCCL_OPERATIONS,
  ALLOCATIONS,
  COUNTERS,
};
extern std::atomic<long> counters[COUNTERS];
EXPORTED void emulated_counters(long* values);
EXPORTED void emulated_reset_counters();

// ---------------------------------------------------------------- devices and memory

extern thread_local int current_device;
int device_count();
cudaError_t answer(cudaError_t error);  // returns it, and remembers it for cudaGetLastError

enum MemoryKind { NOT_OURS, PINNED, ON_DEVICE };
struct Memory {
  MemoryKind kind = NOT_OURS;
  size_t bytes = 0;
  int device = 0;
};
Memory memory_at(const void* pointer);

// ---------------------------------------------------------------- streams

// A CUDA graph that is being captured, or that was: what its streams were given, in that order. Each replay makes the
// work anew.
struct Graph {
  unsigned long long id = 0;
  std::vector<std::function<Work()>> makers;
  bool invalid = false;  // something was called that cannot be captured
};

class Stream {
 public:
  Stream(int device, int priority);
  void push(Work work);                   // to the thread, or to the graph that captures this stream
  void make(std::function<Work()> maker);  // the same, for work that is another in each replay
  void drain();                           // blocks until everything so far has run
  bool is_idle();

  const int device;
  const int priority;
  Graph* capture = nullptr;

 private:
  void run();

  std::deque<Work> queue_;
  bool busy_ = false;
  std::mutex mutex_;
  std::condition_variable pushed_, idle_;
};

Stream* stream_of(cudaStream_t handle);
std::vector<Stream*> all_streams();

// For the operators: a kernel in stream order, and waiting without being counted.
EXPORTED void emulated_launch(cudaStream_t stream, Work work, int counter);
EXPORTED cudaError_t emulated_drain(cudaStream_t stream);
