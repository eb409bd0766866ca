// SPDX-License-Identifier: MIT
// libcudart: kernels. None can run; one that is launched all the same is named, and its launch is an error in torch.
#include "emulator.h"

#include <cstdio>
#include <cstring>
#include <map>

static auto& names = *new std::map<const void*, std::string>;

// nvcc makes every library call these when it is loaded
EXPORTED void** __cudaRegisterFatBinary(void*) {
  static void* handle[4];
  return handle;
}
EXPORTED void __cudaRegisterFatBinaryEnd(void**) {}
EXPORTED void __cudaUnregisterFatBinary(void**) {}
EXPORTED void __cudaRegisterVar(void**, char*, char*, const char*, int, size_t, int, int) {}
EXPORTED void __cudaRegisterFunction(
    void**, const char* kernel, char*, const char* name, int, void*, void*, void*, void*, int*) {
  names[kernel] = name;
}

static cudaError_t refuse(const void* kernel) {
  auto found = names.find(kernel);
  fprintf(stderr, "EMULATED: a kernel that cannot run: %s\n", found == names.end() ? "?" : found->second.c_str());
  return answer(cudaErrorNotSupported);
}

EXPORTED cudaError_t cudaLaunchKernel(const void* kernel, dim3, dim3, void**, size_t, cudaStream_t) {
  return refuse(kernel);
}
EXPORTED cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t*, const void* kernel, void**) {
  return refuse(kernel);
}
EXPORTED cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3, dim3, void**, size_t, cudaStream_t) {
  return refuse(kernel);
}
EXPORTED cudaError_t __cudaGetKernel(cudaKernel_t* out, const void* kernel) {
  *out = reinterpret_cast<cudaKernel_t>(const_cast<void*>(kernel));
  return cudaSuccess;
}

EXPORTED cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void*) {
  memset(attributes, 0, sizeof *attributes);
  attributes->maxThreadsPerBlock = 1024;
  attributes->binaryVersion = attributes->ptxVersion = 90;
  return cudaSuccess;
}

EXPORTED cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int) { return cudaSuccess; }

EXPORTED cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void*, int, size_t) {
  *blocks = 2;
  return cudaSuccess;
}

EXPORTED cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
    int* blocks, const void*, int, size_t, unsigned) {
  *blocks = 2;
  return cudaSuccess;
}
