// SPDX-License-Identifier: MIT
// Settings from the environment, random delays, counters, and how a broken rule ends the process.
#include "emulator.h"

#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <thread>

std::atomic<long> counters[COUNTERS];

int setting(const char* name, int otherwise) {
  const char* value = getenv(name);
  return value ? atoi(value) : otherwise;
}

std::atomic<int> kernel_delay{setting("EMULATED_KERNEL_DELAY_US", 0)};
std::atomic<int> nccl_delay{setting("EMULATED_NCCL_DELAY_US", 0)};
std::atomic<int> nccl_patience{setting("EMULATED_NCCL_HANG_S", 60)};

EXPORTED void emulated_set(int new_kernel_delay, int new_nccl_delay, int new_nccl_patience) {
  kernel_delay = new_kernel_delay;
  nccl_delay = new_nccl_delay;
  nccl_patience = new_nccl_patience;
}

void pause_up_to(int microseconds) {
  if (microseconds <= 0) return;
  static thread_local std::mt19937 random(std::random_device{}());
  std::this_thread::sleep_for(std::chrono::microseconds(random() % microseconds));
}

void fail(int exit_code, const std::string& message) {
  fprintf(stderr, "%s\n", message.c_str());
  fflush(stderr);
  _exit(exit_code);
}

EXPORTED void emulated_counters(long* values) {
  for (int i = 0; i < COUNTERS; i++) values[i] = counters[i].load();
}

EXPORTED void emulated_reset_counters() {
  for (auto& counter : counters) counter = 0;
}
