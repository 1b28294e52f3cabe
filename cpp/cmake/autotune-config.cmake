# What find_package(autotune CONFIG) makes: the headers of what ships as tuned, and a way to compile exported sources.
#
#   autotune::autotune                            INTERFACE: #include <autotune/KERNEL.hpp>, C++17
#   autotune_cubins(TARGET FOLDER ARCH [NVCC])    compiles what `autotune export KERNEL cuda` wrote to FOLDER
#
# The target of the second makes KERNEL_N.cubin of every FOLDER/KERNEL_N.cu, for the architecture ARCH (90, say); its
# property AUTOTUNE_FOLDER is the folder that they are in, which a launcher takes.

get_filename_component(_autotune_prefix "${CMAKE_CURRENT_LIST_DIR}" DIRECTORY)
if(NOT TARGET autotune::autotune)
  add_library(autotune::autotune INTERFACE IMPORTED)
  set_target_properties(autotune::autotune PROPERTIES
    INTERFACE_INCLUDE_DIRECTORIES "${_autotune_prefix}/include"
    INTERFACE_COMPILE_FEATURES cxx_std_17)
endif()
unset(_autotune_prefix)

function(autotune_cubins target folder arch)
  set(nvcc nvcc)
  if(ARGC GREATER 3)
    set(nvcc "${ARGV3}")
  endif()
  get_filename_component(folder "${folder}" ABSOLUTE)
  set(built "${CMAKE_CURRENT_BINARY_DIR}/${target}")
  file(MAKE_DIRECTORY "${built}")
  file(GLOB sources CONFIGURE_DEPENDS "${folder}/*.cu")
  set(cubins "")
  foreach(source IN LISTS sources)
    # The first lines say how it is compiled for the architecture it was tuned on, which is put in the place of.
    file(STRINGS "${source}" line REGEX "^// nvcc .* -cubin -gencode " LIMIT_COUNT 1)
    if(line STREQUAL "")
      continue()  # no exported source
    endif()
    string(REGEX REPLACE "^// nvcc (.*) -cubin .*$" "\\1" options "${line}")
    separate_arguments(options UNIX_COMMAND "${options}")
    string(REGEX REPLACE "^.*,code=sm_[0-9]+([a-z]*) .*$" "\\1" suffix "${line}")
    get_filename_component(name "${source}" NAME_WE)
    add_custom_command(
      OUTPUT "${built}/${name}.cubin"
      COMMAND "${nvcc}" ${options} -cubin -gencode "arch=compute_${arch}${suffix},code=sm_${arch}${suffix}"
              -o "${built}/${name}.cubin" "${source}"
      DEPENDS "${source}"
      VERBATIM)
    list(APPEND cubins "${built}/${name}.cubin")
  endforeach()
  add_custom_target(${target} ALL DEPENDS ${cubins})
  set_target_properties(${target} PROPERTIES AUTOTUNE_FOLDER "${built}")
endfunction()
